//! A writer whose text can be looked at while something else writes it: a trace, a log.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// See the module's comment. Clones share the text.
#[derive(Clone, Debug, Default)]
pub struct Text(Arc<Mutex<Vec<u8>>>);

impl Text {
    /// What was written so far.
    ///
    /// # Panics
    /// When that is no UTF-8, or a thread panicked while it wrote.
    pub fn written(&self) -> String {
        String::from_utf8(self.0.lock().expect("nobody panics").clone()).expect("text")
    }
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

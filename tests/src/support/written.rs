//! A writer whose text can be read while another thread writes it: a trace, a log.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// A writer to shared memory; clones share the text.
#[derive(Clone, Debug, Default)]
pub struct Text(Arc<Mutex<Vec<u8>>>);

impl Text {
    /// The text written so far.
    ///
    /// # Panics
    /// If the text is not UTF-8, or a thread panicked while it wrote.
    pub fn written(&self) -> String {
        String::from_utf8(self.0.lock().expect("no writer panics").clone()).expect("text")
    }
}

impl Write for Text {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panics").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

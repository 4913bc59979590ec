use crate::low::inner;

pub struct Upper;

pub fn starts_two_threads() {
    std::thread::spawn(|| ());
    let _ = std::thread::Builder::new().spawn(|| ());
}

#[cfg(test)]
mod tests {
    fn is_not_counted() {
        std::thread::spawn(|| ());
    }
}

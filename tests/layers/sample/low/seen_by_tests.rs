#[cfg(test)]
mod tests;

//! An HTTP client of a few lines, which can also be slow, vanish, and send nonsense.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

/// The most time that a test waits for one answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The headers, in small letters, a line each.
    pub(crate) headers: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The text of a refusal.
    pub(crate) fn error(&self) -> String {
        self.json()["error"].as_str().unwrap_or_else(|| panic!("no error: {self:?}")).to_owned()
    }

    pub(crate) fn embeddings(&self) -> Vec<Vec<f32>> {
        assert_eq!(self.status, 200, "{self:?}");
        serde_json::from_value(self.json()["embeddings"].clone()).expect("lists of numbers")
    }
}

/// A connection to a server.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        stream.set_write_timeout(Some(PATIENCE)).expect("a limit");
        Client { stream: BufReader::new(stream) }
    }

    /// Sends bytes, whatever they are. The server may have closed the connection already.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Sends a request for the embeddings of texts.
    pub(crate) fn ask(&mut self, texts: &[&str]) {
        self.send(&request("POST", "/embed", json!({"texts": texts}).to_string().as_bytes())).expect("sent");
    }

    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        let (mut first, mut headers) = (String::new(), String::new());
        if self.stream.read_line(&mut first)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            headers += &line.to_lowercase();
        }
        let length = headers.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.trim().parse().expect("a length"))];
        self.stream.read_exact(&mut body)?;
        let status = first.split_whitespace().nth(1).expect("a status").parse().expect("a number");
        Ok(Answer { status, headers, body: String::from_utf8(body).expect("UTF-8") })
    }

    /// Whether the server has closed the connection, without another answer; waits until it does.
    pub(crate) fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

/// The bytes of a request.
pub(crate) fn request(method: &str, path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{method} {path} HTTP/1.1\r\nhost: minilm\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// The answer to one request, on a connection of its own.
pub(crate) fn answer(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> Answer {
    let mut client = Client::connect(address);
    client.send(&request(method, path, body)).expect("sent");
    client.answer().expect("an answer")
}

/// The answer to a request for embeddings.
pub(crate) fn embed(address: SocketAddr, texts: &[&str]) -> Answer {
    answer(address, "POST", "/embed", json!({"texts": texts}).to_string().as_bytes())
}

/// The counter of this name and these labels; 0 if it was never counted.
pub(crate) fn metric(address: SocketAddr, name: &str) -> f64 {
    let text = answer(address, "GET", "/metrics", b"").body;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().expect("a number"))
}

//! `streamvm inspect`: the page of a trace, as a file or served to a browser of this machine.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use streamvm_report::{Recording, Report, write_page};

use crate::base::printable::{is_stdin, printable};
use crate::command::exit::{Exit, written};
use crate::command::report_trace::read;
use crate::files::output::OutputFile;
use crate::files::place::FilePlace;

/// The port of this machine that the page of Perfetto may fetch traces from.
const PERFETTO_PORT: u16 = 9001;

/// The origin of Perfetto's page, which may read the trace.
const PERFETTO: &str = "https://ui.perfetto.dev";

/// How long a browser may take to say what it wants.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest head of a request.
const LONGEST_HEAD: usize = 1 << 14;

/// How many requests are answered at a time.
const MOST_CONNECTIONS: usize = 64;

/// Where the page goes.
#[derive(Clone, Debug)]
pub enum PageTo {
    /// To this file; by default one beside the trace.
    File(Option<PathBuf>),
    /// To browsers of this machine that ask at this port; 0 is any that is free.
    Port(u16),
}

/// `streamvm inspect TRACE`; `-` is stdin.
///
/// # Errors
/// Only if `err` cannot be written.
pub fn inspect_trace(trace: &Path, to: PageTo, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<Exit> {
    let file = match &to {
        PageTo::File(None) if is_stdin(trace) => {
            writeln!(err, "error: the page of a trace from stdin needs a name: give --html FILE, or --serve")?;
            return Ok(Exit::Rejected);
        }
        PageTo::File(Some(file)) => file.clone(),
        _ => {
            let mut name = trace.as_os_str().to_owned();
            name.push(".html");
            name.into()
        }
    };
    if matches!(to, PageTo::File(_)) && FilePlace::of(&file) == FilePlace::of(trace) {
        writeln!(err, "{}: error: the page would overwrite the trace", printable(&file.display().to_string()))?;
        return Ok(Exit::Rejected);
    }
    let Some(recording) = read(trace, err)? else { return Ok(Exit::Rejected) };
    let report = Report::of(&recording);
    let title = trace.file_name().map_or_else(|| "stdin".to_owned(), |name| name.to_string_lossy().into_owned());
    let done = match to {
        PageTo::File(_) => {
            let name = printable(&file.display().to_string()).to_string();
            if let Err(error) = write_file(&recording, &report, &title, &file) {
                writeln!(err, "{name}: error: cannot write the page: {error}")?;
                return Ok(Exit::Failed);
            }
            writeln!(out, "{name}: open it in a browser")
        }
        PageTo::Port(port) => {
            let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                Ok(listener) => listener,
                Err(error) => {
                    writeln!(
                        err,
                        "error: cannot serve at port {port}: {error}; give another one, or 0 for any that is free"
                    )?;
                    return Ok(Exit::Failed);
                }
            };
            let port = listener.local_addr().map_or(port, |address| address.port());
            let served = Served::new(&recording, &report, &title, trace, port);
            drop((recording, report));
            writeln!(out, "http://127.0.0.1:{port}/ has the page; Ctrl-C ends this")
                .and_then(|()| out.flush())
                .and_then(|()| served?.serve(&listener))
        }
    };
    Ok(written(done, err)?.unwrap_or(Exit::Fine))
}

fn write_file(recording: &Recording, report: &Report, title: &str, path: &Path) -> io::Result<()> {
    let output = OutputFile::create(path)?;
    let mut file = io::BufWriter::new(output.file()?);
    write_page(recording, report, (title, None), &mut file)?;
    file.flush()?;
    drop(file);
    output.finish()
}

/// The files that the server has: the page, and the trace for Perfetto.
struct Served {
    page: Vec<u8>,
    /// `None` if it was read from stdin or a pipe.
    trace: Option<PathBuf>,
    port: u16,
}

impl Served {
    fn new(recording: &Recording, report: &Report, title: &str, trace: &Path, port: u16) -> io::Result<Served> {
        // A pipe could be read once.
        let trace = Some(trace).filter(|trace| !is_stdin(trace) && trace.is_file()).map(Path::to_owned);
        let address = trace.as_ref().filter(|_| port == PERFETTO_PORT);
        let address = address.map(|_| format!("http://127.0.0.1:{PERFETTO_PORT}/trace"));
        let mut page = Vec::new();
        write_page(recording, report, (title, address.as_deref()), &mut page)?;
        Ok(Served { page, trace, port })
    }

    /// Answers until a signal ends the process.
    fn serve(self, listener: &TcpListener) -> io::Result<()> {
        let served = Arc::new(self);
        let open = Arc::new(AtomicUsize::new(0));
        for connection in listener.incoming() {
            let connection = match connection {
                Ok(connection) => connection,
                Err(error) => {
                    log::warn!("a request is not answered: {error}");
                    thread::sleep(Duration::from_millis(100));
                    continue;
                }
            };
            // A browser opens some connections, of which it may never use one.
            if open.fetch_add(1, Ordering::Relaxed) >= MOST_CONNECTIONS {
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (served, of_thread) = (served.clone(), open.clone());
            let answer = move || {
                if let Err(error) = served.answer(&connection) {
                    log::debug!("a request was not answered: {error}");
                }
                of_thread.fetch_sub(1, Ordering::Relaxed);
            };
            if let Err(error) = thread::Builder::new().name("streamvm-page".to_owned()).spawn(answer) {
                open.fetch_sub(1, Ordering::Relaxed);
                log::warn!("a request is not answered: {error}");
            }
        }
        Ok(())
    }

    fn answer(&self, mut connection: &TcpStream) -> io::Result<()> {
        let head = head(connection)?;
        let mut lines = head.lines();
        let request = lines.next().unwrap_or_default();
        let hosts = lines.filter_map(|line| line.split_once(':'));
        let host = hosts.filter(|(name, _)| name.eq_ignore_ascii_case("host")).map(|(_, host)| host.trim()).next();
        let mut words = request.split(' ');
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let is_known = host.is_some_and(|host| {
            let (name, port) = host.rsplit_once(':').unwrap_or((host, "80"));
            (name == "127.0.0.1" || name == "localhost") && port == self.port.to_string()
        });
        let (status, kind, file): (&str, &str, Option<File>) = match (method, path) {
            // Another site may have its name lead here, and must not read a trace by that.
            _ if !is_known => ("403 Forbidden", "text/plain", None),
            ("GET", "/") => ("200 OK", "text/html; charset=utf-8", None),
            ("GET" | "OPTIONS", "/trace") => match self.trace.as_ref().map(File::open) {
                Some(Ok(file)) => ("200 OK", "application/octet-stream", Some(file)),
                _ => ("404 Not Found", "text/plain", None),
            },
            ("GET", _) => ("404 Not Found", "text/plain", None),
            _ => ("405 Method Not Allowed", "text/plain", None),
        };
        let body: &[u8] = match (status, &file) {
            ("200 OK", None) => &self.page,
            _ => b"",
        };
        let length = match &file {
            Some(file) if method == "GET" => file.metadata()?.len(),
            _ => body.len() as u64,
        };
        write!(
            connection,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\nAccess-Control-Allow-Origin: {PERFETTO}\r\nAccess-Control-Allow-Private-Network: true\r\n\r\n"
        )?;
        connection.write_all(body)?;
        if let Some(file) = file.filter(|_| method == "GET") {
            io::copy(&mut file.take(length), &mut connection)?;
        }
        connection.flush()
    }
}

/// The head of a request: all before an empty line.
fn head(mut connection: &TcpStream) -> io::Result<String> {
    let until = Instant::now() + PATIENCE;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut head = Vec::new();
    let mut bytes = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > LONGEST_HEAD {
            return Err(io::Error::other("the request is too slow or too long"));
        }
        connection.set_read_timeout(Some(left))?;
        match connection.read(&mut bytes)? {
            0 => break,
            count => head.extend_from_slice(&bytes[..count]),
        }
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

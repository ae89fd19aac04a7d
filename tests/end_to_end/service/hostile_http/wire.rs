//! HTTP by hand: bytes out, and what comes back until the service hangs up.

use std::{
    io::{Error, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// Ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// Stands for a status: the service hung up without an answer.
pub const CLOSED: u16 = 0;

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    fn read(received: &[u8]) -> Self {
        let end = received.windows(4).position(|four| four == b"\r\n\r\n").map_or(received.len(), |at| at + 4);
        let (head, body) = (String::from_utf8_lossy(&received[..end]).into_owned(), received[end..].to_vec());
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(CLOSED);
        // Asked for by `Expect`, and not the answer yet.
        if status == 100 { Self::read(&body) } else { Self { status, head, body } }
    }

    pub fn text(&self) -> String {
        format!("{}{}", self.head, String::from_utf8_lossy(&self.body))
    }
}

/// A request that the connection ends with; `headers` are lines with their ends.
pub fn request(line: impl AsRef<[u8]>, headers: impl AsRef<[u8]>, body: impl AsRef<[u8]>) -> Vec<u8> {
    let (line, headers, body) = (line.as_ref(), headers.as_ref(), body.as_ref());
    let own = format!(" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    [line, own.as_bytes(), headers, b"\r\n", body].concat()
}

/// Sends bytes and reads until the service hangs up; nothing if it has said nothing by then.
pub fn exchange(address: SocketAddr, bytes: &[u8]) -> Option<Answer> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    // A service that refuses early does not read the rest.
    let _ = stream.write_all(bytes);
    let (mut received, mut piece) = (Vec::new(), [0; 16 << 10]);
    while begun.elapsed() < PATIENCE {
        match stream.read(&mut piece) {
            Ok(0) => return Some(Answer::read(&received)),
            Ok(count) => received.extend_from_slice(&piece[..count]),
            Err(error) if is_waiting(&error) => {}
            Err(_) => return Some(Answer::read(&received)),
        }
    }
    (!received.is_empty()).then(|| Answer::read(&received))
}

/// Sends a beginning, then a byte now and then; after an empty beginning, nothing. Whether the
/// service answered or hung up in time.
pub fn drip(address: SocketAddr, start: &[u8], time: Duration) -> bool {
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(250))).unwrap();
    let mut is_open = stream.write_all(start).is_ok();
    while is_open && begun.elapsed() < time {
        is_open = stream.read(&mut [0; 1024]).is_err_and(|error| is_waiting(&error));
        is_open &= start.is_empty() || stream.write_all(b" ").is_ok();
    }
    !is_open
}

/// True if a failed call is made again: its time is over, or the machine stood still within it
/// (calls with a time-out are not restarted by themselves then, `signal(7)`).
pub fn is_waiting(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

//! The terminal that an output goes to.

use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// The columns of the terminal behind a stream; none for a file or a pipe, or for a terminal that
/// does not say.
pub fn terminal_width(stream: impl AsFd) -> Option<u16> {
    tcgetwinsize(stream).ok().map(|size| size.ws_col).filter(|columns| *columns > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_a_pipe_have_no_width() {
        assert_eq!(terminal_width(tempfile::tempfile().unwrap()), None);
        assert_eq!(terminal_width(std::io::pipe().unwrap().1), None);
    }
}

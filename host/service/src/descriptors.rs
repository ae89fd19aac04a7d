//! File descriptors of this process: as many as the system allows, and the connections that fit
//! among them.

use std::io;

use rustix::{
    io::Errno,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

/// Descriptors for everything but connections: the database, jobs' files, devices, watched folders,
/// the log.
const OTHERS: usize = 64;

/// The connections that are taken, however few descriptors there are.
const LEAST: usize = 8;

/// Raises the number of descriptors that this process may have to the most that the system allows.
pub fn raise_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // A refusal leaves the limit as it was: fewer connections fit then.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// The connections that fit, of those that are configured; `beside` is how many more may be open.
pub fn fit_connections(connections: usize, beside: usize) -> usize {
    let Some(descriptors) = getrlimit(Resource::Nofile).current else { return connections };
    let fitting = fit(connections, beside, usize::try_from(descriptors).unwrap_or(usize::MAX));
    if fitting < connections {
        tracing::warn!(
            "[server.limits] connections: {connections} don't fit among {descriptors} descriptors, {fitting} are taken: \
             raise the limit on open files (ulimit -n, LimitNOFILE)"
        );
    }
    fitting
}

fn fit(connections: usize, beside: usize, descriptors: usize) -> usize {
    connections.min(descriptors.saturating_sub(OTHERS + beside).max(LEAST))
}

/// True if no file can be opened at present, which says nothing of the file asked for.
pub fn are_exhausted(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno == Some(Errno::MFILE) || errno == Some(Errno::NFILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        for (connections, descriptors, expected) in
            [(256, 1024, 256), (2000, 1024, 952), (256, 96, 24), (256, 64, LEAST), (2, 16, 2), (256, usize::MAX, 256)]
        {
            assert_eq!(fit(connections, 8, descriptors), expected, "{connections} among {descriptors}");
        }
    }

    #[test]
    fn a_file_that_is_missing_is_told_from_want_of_descriptors() {
        assert!(are_exhausted(&Errno::MFILE.into()) && are_exhausted(&Errno::NFILE.into()));
        assert!(!are_exhausted(&Errno::NOENT.into()) && !are_exhausted(&io::Error::other("too many open files")));
    }
}

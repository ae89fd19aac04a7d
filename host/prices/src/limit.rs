//! The memory that a job may hold.

/// The most that a job may hold at once. A plain number of bytes leaves the weights aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub bytes: u64,
    /// The limit counts the weights in use, and so do estimates and measured peaks; otherwise none
    /// of them does.
    pub counts_weights: bool,
}

impl From<u64> for MemoryLimit {
    fn from(bytes: u64) -> Self {
        Self { bytes, counts_weights: false }
    }
}

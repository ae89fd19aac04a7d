//! Copies of tensors in oneDNN's own order, which keeps channels in blocks as wide as the
//! processor's registers.

/// Channels of a block: 16 with AVX-512, 8 on other x86 processors (oneDNN, "Understanding Memory
/// Formats", nChw16c and nChw8c).
pub fn block() -> f64 {
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("avx512f") {
        return 8.0;
    }
    16.0
}

/// Channels as such a copy holds them: whole blocks.
pub fn whole_blocks(channels: f64) -> f64 {
    (channels / block()).ceil() * block()
}

//! Latents from the acceptance of their jobs to the beginning of the work: each is read once.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tilewright_models::Latent;

/// The most bytes that are held. The latent of a later job is read again when its turn comes.
const MOST_BYTES: usize = 256 << 20;

/// The latents of waiting jobs, by the jobs' ids.
#[derive(Debug, Default)]
pub struct WaitingLatents(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    latents: HashMap<String, Latent>,
    bytes: usize,
}

fn bytes(latent: &Latent) -> usize {
    let texts = latent.texts.iter().map(|(name, text)| name.len() + text.len());
    latent.values.numel() * size_of::<f32>() + texts.sum::<usize>()
}

impl WaitingLatents {
    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds the latent of a job, if there is room.
    pub fn hold(&self, id: &str, latent: Latent) {
        let mut held = self.lock();
        let bytes = bytes(&latent);
        if held.bytes + bytes <= MOST_BYTES {
            held.bytes += bytes;
            held.latents.insert(id.to_owned(), latent);
        }
    }

    /// Takes the latent of a job out, if it is held.
    pub fn take(&self, id: &str) -> Option<Latent> {
        let mut held = self.lock();
        let latent = held.latents.remove(id)?;
        held.bytes -= bytes(&latent);
        Some(latent)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};
    use tilewright_models::Origin;

    use super::*;

    #[test]
    fn latents_beyond_the_limit_are_not_held() {
        let latent = |values: usize| {
            let values = Tensor::f_empty([values as i64], (Kind::Float, Device::Cpu)).unwrap();
            Latent { path: "latent".into(), origin: Origin::Plain, values, texts: Vec::new() }
        };
        let waiting = WaitingLatents::default();
        let half = MOST_BYTES / 2 / size_of::<f32>();
        waiting.hold("a", latent(half));
        waiting.hold("b", latent(half + 1));
        waiting.hold("c", latent(half));
        assert!(waiting.take("b").is_none());
        assert!(waiting.take("a").is_some() && waiting.take("a").is_none());
        waiting.hold("b", latent(half));
        assert!(waiting.take("b").is_some() && waiting.take("c").is_some());
        assert_eq!(waiting.lock().bytes, 0);
    }
}

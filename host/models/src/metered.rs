//! Networks on a meter: the weights that they ask for, the products that they take, and costs that
//! are worked out once.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};

use tilewright_kernels::{Kernels, Rate};
use tilewright_nn::{ComputeFormat, Costs, Listing, Meter, Needed, Scope};

use crate::Result;

/// Extents whose cost is remembered.
const REMEMBERED: usize = 4096;

/// A meter of f32 tensors that knows no device.
pub(crate) fn plain(costs: Costs) -> Meter {
    Meter::new(ComputeFormat::single(), costs)
}

/// A meter whose seconds are the products of convolutions and linear layers.
pub(crate) fn counting_products() -> Meter {
    plain(Costs { plain: Rate { per_product: 1.0, per_value: 0.0 }, ..Costs::default() })
}

/// A network on a meter.
#[derive(Debug)]
pub(crate) struct Built<N> {
    pub network: N,
    /// Bytes of its weights, as they are laid out in the meter's format.
    pub weight_bytes: u64,
}

/// Builds a network on a meter that has built none before.
///
/// # Errors
/// The architecture's widths don't go together.
pub(crate) fn build<N>(meter: &Meter, build: impl FnOnce(&Scope<'_, Meter>) -> Result<N>) -> Result<Built<N>> {
    let listing = Listing::default();
    let network = build(&Scope::new(&listing, meter))?;
    Ok(Built { network, weight_bytes: listing.bytes().saturating_add_signed(meter.weights_grown()) })
}

/// A network in one format, built when it is first asked for.
#[derive(Debug)]
pub(crate) struct Lazily<N>(Arc<Mutex<Option<Built<N>>>>);

impl<N> Clone for Lazily<N> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<N> Default for Lazily<N> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<N> Lazily<N> {
    /// Looks at the network, which is built on this meter if it is not there.
    ///
    /// # Errors
    /// As [`build`], and those of the look.
    pub fn with<T>(
        &self,
        meter: &Meter,
        network: impl FnOnce(&Scope<'_, Meter>) -> Result<N>,
        look: impl FnOnce(&Built<N>) -> Result<T>,
    ) -> Result<T> {
        let mut built = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *built {
            Some(built) => look(built),
            none => look(none.insert(build(meter, network)?)),
        }
    }
}

/// Bytes of a network's weights, as they are laid out in a format with the kernels of a device.
///
/// # Errors
/// As [`build`].
pub(crate) fn weight_bytes<N>(
    format: ComputeFormat,
    kernels: &Kernels,
    network: impl FnOnce(&Scope<'_, Meter>) -> Result<N>,
) -> Result<u64> {
    let meter = Meter::new(format, Costs { kernels: *kernels, ..Costs::default() });
    Ok(build(&meter, network)?.weight_bytes)
}

/// Builds a network on a meter of no device; gives it with the weights that it asks for.
///
/// # Errors
/// As [`build`].
pub(crate) fn list_weights<N>(build: impl FnOnce(&Scope<'_, Meter>) -> Result<N>) -> Result<(N, Vec<Needed>)> {
    let listing = Listing::default();
    let network = build(&Scope::new(&listing, &plain(Costs::default())))?;
    Ok((network, listing.into_needed()))
}

/// The share of each layer in the work between the first of these ends of layers and the last; they
/// add up to 1.
pub(crate) fn shares(ends: &[f64]) -> Vec<f64> {
    let all = ends.last().zip(ends.first()).map_or(0.0, |(last, first)| last - first).max(1e-9);
    ends.windows(2).map(|pair| (pair[1] - pair[0]) / all).collect()
}

/// Costs that were worked out, each by its subject.
#[derive(Clone, Debug)]
pub(crate) struct Remembered<K, C>(Arc<Mutex<HashMap<K, C>>>);

impl<K, C> Default for Remembered<K, C> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Copy + Eq + Hash, C: Copy> Remembered<K, C> {
    /// The cost, worked out if it is not known.
    ///
    /// # Errors
    /// Those of working it out, which are not remembered.
    pub fn get<E>(&self, of: &K, work_out: impl FnOnce() -> std::result::Result<C, E>) -> std::result::Result<C, E> {
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cost) = known().get(of) {
            return Ok(*cost);
        }
        let cost = work_out()?;
        let mut known = known();
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(*of, cost);
        Ok(cost)
    }

    /// The number of costs that are remembered.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

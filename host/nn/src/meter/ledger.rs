//! The bytes that a meter's tensors hold, the time that its operations take, and their launches.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
};

use crate::Layer;

/// The work of operations that are no products, convolutions or attention: a GPU launches each by
/// itself, and it reads and writes its tensors in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Glue {
    /// Launches on a GPU.
    pub launches: f64,
    /// Bytes that are read and written.
    pub bytes: f64,
}

/// The bytes that are held, the most that were, those that weights grew by, the time that was
/// spent, and the work between products.
#[derive(Debug)]
pub(crate) struct Ledger {
    held: Cell<u64>,
    peak: Cell<u64>,
    weights: Cell<i64>,
    seconds: Cell<f64>,
    glue: Cell<Glue>,
    times: Cell<f64>,
    layers: RefCell<Option<Layers>>,
}

/// The time of layers by name.
#[derive(Debug, Default)]
struct Layers {
    all: Vec<LayerSeconds>,
    /// By name, and whether it is a block: a block of one layer has that one's name.
    places: HashMap<(Box<str>, bool), usize>,
}

/// The time that a meter counted for a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSeconds {
    /// The layer's name.
    pub name: Box<str>,
    /// True for a block.
    pub is_block: bool,
    /// Runs of it.
    pub runs: f64,
    /// Seconds of all runs, inner layers included.
    pub seconds: f64,
}

/// A layer whose time a meter counts until it is dropped.
#[derive(Debug)]
pub struct LayerCosts(Option<Counted>);

#[derive(Debug)]
struct Counted {
    ledger: Rc<Ledger>,
    place: usize,
    before: f64,
}

impl LayerCosts {
    /// No layer.
    pub(crate) const fn none() -> Self {
        Self(None)
    }
}

impl Drop for LayerCosts {
    fn drop(&mut self) {
        let Some(Counted { ledger, place, before }) = &self.0 else { return };
        if let Some(layers) = &mut *ledger.layers.borrow_mut()
            && let Some(layer) = layers.all.get_mut(*place)
        {
            layer.seconds += ledger.seconds() - before;
        }
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            held: Cell::new(0),
            peak: Cell::new(0),
            weights: Cell::new(0),
            seconds: Cell::new(0.0),
            glue: Cell::default(),
            times: Cell::new(1.0),
            layers: RefCell::default(),
        }
    }
}

impl Ledger {
    /// Counts the time of layers from here on.
    pub fn count_layers(&self) {
        self.layers.replace(Some(Layers::default()));
    }

    /// True if the time of layers is counted.
    pub fn counts_layers(&self) -> bool {
        self.layers.borrow().is_some()
    }

    /// The time of layers so far.
    pub fn layers(&self) -> Vec<LayerSeconds> {
        self.layers.borrow().as_ref().map_or_else(Vec::new, |layers| layers.all.clone())
    }

    /// Begins a layer.
    pub fn begin(self: &Rc<Self>, layer: &Layer) -> LayerCosts {
        LayerCosts(self.layers.borrow_mut().as_mut().map(|layers| {
            let Layers { all, places } = layers;
            let place = *places.entry((layer.name().into(), layer.is_block())).or_insert_with(|| {
                all.push(LayerSeconds {
                    name: layer.name().into(),
                    is_block: layer.is_block(),
                    runs: 0.0,
                    seconds: 0.0,
                });
                all.len() - 1
            });
            all[place].runs += self.times();
            Counted { ledger: Rc::clone(self), place, before: self.seconds() }
        }))
    }

    pub fn held_bytes(&self) -> u64 {
        self.held.get()
    }

    pub fn peak(&self) -> u64 {
        self.peak.get()
    }

    /// Makes the bytes held now the peak.
    pub fn reset_peak(&self) {
        self.peak.set(self.held.get());
    }

    /// The bytes by which weights that were laid out differ from those that were given.
    pub fn weights_grown(&self) -> i64 {
        self.weights.get()
    }

    /// Counts weights that are laid out in other bytes than they were given in.
    pub fn lay_out(&self, given: u64, laid_out: u64) {
        let grown = i64::try_from(laid_out).unwrap_or(i64::MAX).saturating_sub_unsigned(given);
        self.weights.set(self.weights.get().saturating_add(grown));
    }

    pub fn seconds(&self) -> f64 {
        self.seconds.get()
    }

    /// Counts time, times the factor of the laps at hand.
    pub fn spend(&self, seconds: f64) {
        self.seconds.set(self.seconds.get() + seconds * self.times.get());
    }

    pub fn glue(&self) -> Glue {
        self.glue.get()
    }

    /// Counts launches that read and write bytes, likewise.
    pub fn launch(&self, launches: u64, bytes: u64) {
        let (Glue { launches: before, bytes: moved }, times) = (self.glue.get(), self.times.get());
        self.glue.set(Glue { launches: before + launches as f64 * times, bytes: moved + bytes as f64 * times });
    }

    /// The factor of time that is counted.
    pub fn times(&self) -> f64 {
        self.times.get()
    }

    /// Sets the factor of time that is counted from here on: a lap of a loop stands for others.
    pub fn repeat(&self, times: f64) {
        self.times.set(times);
    }
}

/// Bytes in a ledger, until they are dropped.
#[derive(Debug)]
pub(super) struct Storage {
    bytes: u64,
    ledger: Rc<Ledger>,
}

impl Storage {
    /// Holds bytes.
    pub fn new(ledger: &Rc<Ledger>, bytes: u64) -> Self {
        let held = ledger.held.get().saturating_add(bytes);
        ledger.held.set(held);
        ledger.peak.set(ledger.peak.get().max(held));
        Self { bytes, ledger: ledger.clone() }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.ledger.held.set(self.ledger.held.get().saturating_sub(self.bytes));
    }
}

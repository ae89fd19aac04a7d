//! A look at the tensors that go through layers, for whoever captures them. While nobody looks, a
//! layer costs a look at a flag.

use std::{
    cell::RefCell,
    fmt,
    marker::PhantomData,
    sync::atomic::{AtomicUsize, Ordering},
};

use tch::Tensor;

use crate::{End, Result};

/// A function that is shown tensors by the name of their layer. An error from it ends the run.
pub type Look = Box<dyn FnMut(&str, End, &Tensor) -> Result<()>>;

/// Threads that are watched.
static WATCHED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LOOK: RefCell<Option<Look>> = const { RefCell::new(None) };
}

/// A watch over the layers that this thread runs, until it is dropped.
pub struct Watch {
    /// The function before, which sees nothing meanwhile.
    before: Option<Look>,
    _here: PhantomData<*const ()>,
}

impl fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Watch").finish_non_exhaustive()
    }
}

impl Watch {
    /// Shows the tensors of this thread's layers to a function; one before sees nothing meanwhile.
    pub fn begin(look: Look) -> Self {
        WATCHED.fetch_add(1, Ordering::Relaxed);
        Self { before: LOOK.replace(Some(look)), _here: PhantomData }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        LOOK.set(self.before.take());
        WATCHED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Shows a tensor, if somebody looks at this thread's layers.
///
/// # Errors
/// The function's.
pub(super) fn see(layer: &str, end: End, tensor: &Tensor) -> Result<()> {
    if WATCHED.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    // The function runs operators, not layers.
    LOOK.with_borrow_mut(|look| look.as_mut().map_or(Ok(()), |look| look(layer, end, tensor)))
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use tilewright_torch::Error;

    use super::*;

    #[test]
    fn tensors_are_shown_while_somebody_looks() {
        let (tensor, seen) = (Tensor::from(1.0), Rc::new(Cell::new(0)));
        see("conv_in", End::In, &tensor).unwrap();
        let count = Rc::clone(&seen);
        let watch = Watch::begin(Box::new(move |layer, end, _| {
            assert_eq!((layer, end), ("conv_in", End::Out));
            count.set(count.get() + 1);
            if count.get() < 2 { Ok(()) } else { Err(Error::Cancelled.into()) }
        }));
        see("conv_in", End::Out, &tensor).unwrap();
        drop(Watch::begin(Box::new(|_, _, _| Ok(()))));
        assert!(see("conv_in", End::Out, &tensor).is_err());
        drop(watch);
        see("conv_in", End::Out, &tensor).unwrap();
        assert_eq!(seen.get(), 2);
    }
}

//! A ring of memory that copies leave from.

/// Blocks of memory in turn, each of which is used again only after the copy from it has ended.
#[derive(Debug)]
pub(super) struct Ring<M, E> {
    slots: Vec<Slot<M, E>>,
    most: usize,
    next: usize,
}

/// A block, and the end of the copy from it.
#[derive(Debug)]
pub(super) struct Slot<M, E> {
    pub memory: M,
    pub end: Option<E>,
}

impl<M, E> Ring<M, E> {
    /// A ring of `most` blocks, which are made when they are first needed.
    pub fn new(most: usize) -> Self {
        Self { slots: Vec::with_capacity(most), most, next: 0 }
    }

    /// The next block, after `wait` for the copy from it.
    ///
    /// # Errors
    /// Those of `make` and `wait`; the block's turn stays.
    pub fn next<F>(
        &mut self,
        make: impl FnOnce() -> Result<M, F>,
        wait: impl FnOnce(&E) -> Result<(), F>,
    ) -> Result<&mut Slot<M, E>, F> {
        let index = self.next;
        if index == self.slots.len() {
            self.slots.push(Slot { memory: make()?, end: None });
        } else if let Some(end) = &self.slots[index].end {
            wait(end)?;
            self.slots[index].end = None;
        }
        self.next = (index + 1) % self.most;
        Ok(&mut self.slots[index])
    }

    /// Waits for all copies, the later ones even if an earlier one failed.
    pub fn finish(&mut self, mut wait: impl FnMut(&E)) {
        self.slots.iter_mut().filter_map(|slot| slot.end.take()).for_each(|end| wait(&end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_used_again_only_after_its_copy_has_ended() {
        let mut ring = Ring::<usize, usize>::new(3);
        let (mut made, mut waited) = (0, Vec::new());
        for copy in 0..8 {
            let make = || {
                made += 1;
                Ok::<_, ()>(made - 1)
            };
            let wait = |end: &usize| {
                waited.push(*end);
                Ok(())
            };
            let slot = ring.next(make, wait).unwrap();
            assert_eq!((slot.memory, slot.end), (copy % 3, None));
            slot.end = Some(copy);
        }
        assert_eq!((made, &waited[..]), (3, &[0, 1, 2, 3, 4][..]));
        let mut rest = Vec::new();
        ring.finish(|end| rest.push(*end));
        rest.sort_unstable();
        assert_eq!(rest, [5, 6, 7]);
        ring.finish(|_| panic!("there is none left"));
    }

    #[test]
    fn a_failure_leaves_the_block_to_the_next_try() {
        let mut ring = Ring::<(), ()>::new(2);
        assert!(ring.next(|| Err(()), |()| Ok(())).is_err());
        ring.next(|| Ok::<_, ()>(()), |()| Ok(())).unwrap().end = Some(());
        ring.next(|| Ok::<_, ()>(()), |()| Ok(())).unwrap();
        assert!(ring.next(|| Ok(()), |()| Err(())).is_err(), "the copy from it may not have ended");
        assert!(ring.next(|| Ok(()), |()| Err(())).is_err(), "it is still the first one's turn");
        ring.next(|| Ok::<_, ()>(()), |()| Ok(())).unwrap();
    }
}

//! Numbers in records are read back to the last bit: a replay must decide from the same facts.

use std::time::Duration;

use proptest::prelude::*;
use tilewright_plan::{Cost, PoolStatistics};

/// An input that fuzzing of records found: read with serde_json's faster parser, its last digit
/// changes.
#[test]
fn a_number_that_was_read_as_its_neighbour() {
    let fragmentation = 0.001_008_230_452_674_952;
    let written = serde_json::to_string(&PoolStatistics { fragmentation, ..PoolStatistics::default() }).unwrap();
    let read: PoolStatistics = serde_json::from_str(&written).unwrap();
    assert_eq!(read.fragmentation.to_bits(), f64::to_bits(fragmentation), "{written}");
}

proptest! {
    #[test]
    fn every_estimate_is_read_as_it_was_written(
        rework in any::<f64>().prop_filter("a record holds finite numbers", |number| number.is_finite()),
        // A day, to the nanosecond.
        elapsed in (0_u64..86_400_000_000_000).prop_map(Duration::from_nanos),
    ) {
        let cost = Cost { peak_bytes: u64::MAX, elapsed, tiles: 1, shapes: 1, rework, weights_bytes: 0 };
        let read: Cost = serde_json::from_str(&serde_json::to_string(&cost).unwrap()).unwrap();
        prop_assert_eq!(read.rework.to_bits(), rework.to_bits());
        prop_assert_eq!(read, cost);
    }
}

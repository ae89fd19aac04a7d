//! The records of other machines.

use super::*;

const ELSEWHERE: &str = "another processor, 8 cores, libtorch 2.11";

fn seconds(history: &History) -> Vec<u128> {
    let listing = history.newest(&Filter::default(), u32::MAX).unwrap();
    listing.entries.iter().map(|entry| as_vae(&entry.record).unwrap().outcome.unwrap().elapsed.as_millis()).collect()
}

#[test]
fn records_of_another_machine_are_added_once_with_their_times_and_devices() {
    let (here, there) = (TestFolder::new(), TestFolder::new());
    let (mut own, mut other) = (here.open(), there.open());
    for second in [10, 30] {
        own.append(DEVICE, &picture(second, 0)).unwrap();
    }
    for (device, second) in [(DEVICE, 20), (ELSEWHERE, 40), (DEVICE, 30)] {
        other.append(device, &picture(second, 0)).unwrap();
    }
    let merged = |added, known| Merged { added, known, ..Merged::default() };
    assert_eq!(own.merge(&other).unwrap(), merged(2, 1));
    assert_eq!(own.merge(&other).unwrap(), merged(0, 3));
    assert_eq!(seconds(&own), [40, 30, 20, 10]);
    // A policy learns from its own device alone, wherever that one stands.
    assert_eq!(trial_seconds(&mut own, &picture(0, 0), 9), [30, 20, 10]);
    let listing = own.newest(&Filter { device: Some("another".into()), ..Filter::default() }, 9).unwrap();
    assert_eq!(listing.entries.len(), 1);
    // A history has nothing to learn from itself, and the other one is as it was.
    let itself = History::existing(&here.path()).unwrap().unwrap();
    assert_eq!(own.merge(&itself).unwrap(), merged(0, 4));
    assert_eq!(seconds(&other), [40, 30, 20]);
}

#[test]
fn nothing_of_another_machine_is_believed_but_records() {
    let (here, there) = (TestFolder::new(), TestFolder::new());
    let (mut own, mut other) = (here.open(), there.open());
    for second in [1, 2, 3, 4] {
        other.append(DEVICE, &picture(second, 0)).unwrap();
    }
    let change = |sql: &str| other.connection.execute_batch(sql).unwrap();
    change("UPDATE trial SET model = 'forged', size = 1, policy = 'forged' WHERE elapsed_ns = 1000000");
    change("UPDATE trial SET record = '{}' WHERE elapsed_ns = 2000000");
    change("UPDATE trial SET record = replace(record, '1970-01-01T00:00:03Z', 'once') WHERE elapsed_ns = 3000000");
    change("UPDATE trial SET profile = 'no profile' WHERE elapsed_ns = 4000000");
    assert_eq!(own.merge(&other).unwrap(), Merged { added: 2, unreadable: 2, ..Merged::default() });
    assert_eq!(trial_seconds(&mut own, &picture(0, 0), 9), [4, 1]);
    let forged = Filter { policy: Some("forged".into()), ..Filter::default() };
    assert_eq!(own.count(&forged).unwrap(), 0);
}

#[test]
fn a_merge_that_fails_adds_nothing_and_the_newest_records_stay() {
    let (here, there) = (TestFolder::new(), TestFolder::new());
    let (mut own, mut other) = (here.open(), there.open());
    for second in 0..8 {
        own.append(DEVICE, &picture(2 * second, 0)).unwrap();
        other.append(DEVICE, &picture(2 * second + 1, 0)).unwrap();
    }
    other.connection.execute_batch("UPDATE trial SET device = CAST(x'ff' AS TEXT) WHERE elapsed_ns = 9000000").unwrap();
    assert!(own.merge(&other).is_err());
    assert_eq!(own.count(&Filter::default()).unwrap(), 8);
    other.connection.execute_batch("DELETE FROM trial WHERE elapsed_ns = 9000000").unwrap();
    own.most_rows = 10;
    assert_eq!(own.merge(&other).unwrap(), Merged { added: 7, removed: 5, ..Merged::default() });
    assert_eq!(seconds(&own), [15, 14, 13, 12, 11, 10, 8, 7, 6, 5]);
}

//! Files of records: a line is a record or it isn't, and what was read is written and read again as the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tilewright_plan::Record;

fuzz_target!(|bytes: &[u8]| {
    for line in bytes.split(|&byte| byte == b'\n') {
        let Ok(record) = serde_json::from_slice::<Record>(line) else { continue };
        let written = serde_json::to_string(&record).expect("what was read can be written");
        let again: Record = serde_json::from_str(&written).expect("what was written can be read");
        assert_eq!(serde_json::to_string(&again).expect("and written again"), written);
    }
});

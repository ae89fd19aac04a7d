//! Summaries of profiles beside records, and files from before there were any.

use serde_json::Value;
use tilewright_profile::{Category, CategoryShare};

use super::*;
use crate::schema::MIGRATIONS;

fn summary() -> ProfileSummary {
    let share = |category, share: f64| CategoryShare { category, total_ms: 40.0 * share, share };
    ProfileSummary {
        stage_ms: 40.0,
        unprofiled_ms: 39.5,
        overhead: 0.0127,
        categories: vec![share(Category::Convolution, 0.75), share(Category::LaunchGaps, 0.25)],
    }
}

fn profiles(history: &History) -> Vec<Option<ProfileSummary>> {
    let listing = history.newest(&Filter::default(), 9).unwrap();
    assert_eq!(listing.unreadable, 0);
    listing.entries.into_iter().map(|entry| entry.profile).collect()
}

fn exported(history: &History) -> Vec<Value> {
    let mut text = Vec::new();
    history.export(&Filter::default(), &mut text).unwrap();
    String::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A file as the version before profiles made it, with these records.
fn old_file(place: &TestFolder, records: &[Record]) {
    let new = place.0.path().join("new.sqlite");
    let mut history = History::open(&new).unwrap();
    records.iter().for_each(|record| history.append(DEVICE, record).unwrap());
    drop(history);
    fs::create_dir_all(place.path().parent().unwrap()).unwrap();
    let connection = Connection::open(place.path()).unwrap();
    connection.execute_batch(MIGRATIONS[0]).unwrap();
    let columns = connection
        .prepare("SELECT name FROM pragma_table_info('trial')")
        .unwrap()
        .query_map([], |row| row.get::<_, String>(0))
        .unwrap()
        .collect::<rusqlite::Result<Vec<_>>>()
        .unwrap()
        .join(", ");
    connection.execute("ATTACH ?1 AS new", [new.to_str().unwrap()]).unwrap();
    connection.execute_batch(&format!("INSERT INTO trial SELECT {columns} FROM new.trial")).unwrap();
    connection.pragma_update(None, "application_id", 0x544c_5752).unwrap();
    connection.pragma_update(None, "user_version", 1).unwrap();
}

#[test]
fn a_profile_stands_beside_its_record_and_changes_nothing_in_it() {
    let place = TestFolder::new();
    let mut history = place.open();
    history.append(DEVICE, &picture(10, 0)).unwrap();
    history.append_profiled(DEVICE, &picture(20, 0), Some(&summary())).unwrap();
    assert_eq!(profiles(&history), [Some(summary()), None]);
    assert_eq!(trial_seconds(&mut history, &picture(0, 0), 8), [10], "time of the profiler is not the plan's");

    let lines = exported(&history);
    assert_eq!(lines[0].get("profile"), None);
    let shares: Vec<(&str, f64)> = lines[1]["profile"]["categories"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["category"].as_str().unwrap(), row["share"].as_f64().unwrap()))
        .collect();
    assert_eq!(shares, [("convolution", 0.75), ("launch-gaps", 0.25)]);
    let read = AnyRecord::from_json(&lines[1].to_string()).unwrap();
    assert_eq!(as_vae(&read), Some(&picture(20, 0)), "a line is still a record");
}

#[test]
fn a_file_from_before_profiles_is_read_and_takes_them() {
    let place = TestFolder::new();
    old_file(&place, &[picture(10, 0), picture(20, 256)]);
    let history = History::existing(&place.path()).unwrap().unwrap();
    assert_eq!(profiles(&history), [None, None]);
    drop(history);
    let mut history = place.open();
    history.append_profiled(DEVICE, &picture(30, 0), Some(&summary())).unwrap();
    drop(history);
    let mut history = place.open();
    assert_eq!(profiles(&history), [Some(summary()), None, None]);
    assert_eq!(trial_seconds(&mut history, &picture(0, 0), 8), [20, 10]);
    assert_eq!(place.broken(), [] as [PathBuf; 0]);
}

#[test]
fn a_view_in_the_place_of_an_old_table_is_refused_before_it_is_read() {
    let place = TestFolder::new();
    old_file(&place, &[picture(10, 0)]);
    let connection = Connection::open(place.path()).unwrap();
    connection.execute_batch("DROP TABLE trial; CREATE VIEW trial AS SELECT 1 AS id").unwrap();
    drop(connection);
    assert!(matches!(History::open(&place.path()), Err(Error::Foreign { .. })));
}

#[test]
fn a_summary_that_cannot_be_read_takes_no_record_with_it() {
    let place = TestFolder::new();
    let mut history = place.open();
    history.append_profiled(DEVICE, &picture(20, 0), Some(&summary())).unwrap();
    history.connection.execute_batch("UPDATE trial SET profile = '{\"stage_ms\":'").unwrap();
    assert_eq!(profiles(&history), [None]);
}

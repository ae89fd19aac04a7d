use proptest::prelude::*;

use super::*;
use crate::{format::Kind, samples};

const SHAPE: Shape = Shape { samples: 2, frames: 6, width: 5, height: 3, channels: 3 };

fn output(folder: &Path) -> Output {
    Output::new(&folder.join("a.gif"), Kind::Clip).unwrap()
}

fn frame(sample: usize, index: usize) -> Frame {
    samples::frame(5, 3, 3, sample * 6 + index)
}

fn fill(journal: &mut Journal, sample: usize, indices: std::ops::Range<usize>) {
    indices.for_each(|index| journal.append(sample, index, &frame(sample, index)).unwrap());
}

fn assert_frames(journal: &Journal, done: &[usize]) {
    for (sample, &done) in done.iter().enumerate() {
        assert!((0..done).all(|index| journal.frame(sample, index).unwrap() == frame(sample, index)));
    }
}

#[test]
fn what_was_committed_is_there_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let output = output(folder.path());
    let (mut journal, done) = Journal::open(&output, "job", SHAPE).unwrap();
    assert_eq!((done, journal.folder()), (vec![0, 0], folder.path().join("a.gif.partial").as_path()));
    fill(&mut journal, 0, 0..4);
    fill(&mut journal, 1, 0..1);
    journal.commit().unwrap();
    fill(&mut journal, 1, 1..3);
    drop(journal);

    let (mut journal, done) = Journal::open(&output, "job", SHAPE).unwrap();
    assert_eq!(done, [4, 1]);
    assert_frames(&journal, &done);
    fill(&mut journal, 1, 1..6);
    journal.commit().unwrap();
    drop(journal);
    let (journal, done) = Journal::open(&output, "job", SHAPE).unwrap();
    assert_eq!(done, [4, 6]);
    assert_frames(&journal, &done);
    journal.remove().unwrap();
    assert!(samples::is_empty(folder.path()));
}

#[test]
fn another_job_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let output = output(folder.path());
    let (mut journal, _) = Journal::open(&output, "job", SHAPE).unwrap();
    journal.commit().unwrap();
    let job = journal.folder().join(JOB);
    drop(journal);
    let reason = |fingerprint, shape| Journal::open(&output, fingerprint, shape).unwrap_err().to_string();
    let told = reason("other", SHAPE);
    assert!(told.contains("a.gif.partial: was begun with another latent, model or plan: delete this folder"), "{told}");
    assert!(reason("job", Shape { frames: 7, ..SHAPE }).contains("another size or count of frames"));
    fs::write(job, "{}").unwrap();
    assert!(reason("job", SHAPE).contains("another version of this program"));
}

#[test]
fn two_cannot_have_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = output(folder.path());
    let (first, _) = Journal::open(&output, "job", SHAPE).unwrap();
    assert!(matches!(Journal::open(&output, "job", SHAPE), Err(Error::Busy { .. })));
    drop(first);
    let (second, _) = Journal::open(&output, "job", SHAPE).unwrap();
    second.remove().unwrap();
    Journal::open(&output, "job", SHAPE).unwrap();
}

#[test]
fn what_is_not_its_own_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&output(folder.path()), "job", SHAPE).unwrap();
    let own = journal.folder().join("own.txt");
    fs::write(&own, "").unwrap();
    journal.remove().unwrap();
    assert!(own.exists());
}

#[test]
fn what_has_no_frame_to_go_on_from_is_swept() {
    let folder = tempfile::tempdir().unwrap();
    let output = output(folder.path());
    let path = Journal::folder_of(&output);
    let sweep = || Journal::sweep(&path).unwrap();
    sweep();
    assert!(samples::is_empty(folder.path()), "nothing is made");
    let (mut journal, _) = Journal::open(&output, "job", SHAPE).unwrap();
    fill(&mut journal, 0, 0..2);
    assert_eq!(journal.resumable_frames(), 0, "nothing is committed");
    assert!(!Journal::is_begun(&path));
    sweep();
    assert!(samples::is_empty(folder.path()));
    drop(journal);

    let (mut journal, _) = Journal::open(&output, "job", SHAPE).unwrap();
    fill(&mut journal, 0, 0..2);
    journal.commit().unwrap();
    fill(&mut journal, 1, 0..1);
    assert_eq!(journal.resumable_frames(), 2);
    sweep();
    assert!(Journal::is_begun(&path));
    drop(journal);
    // Damaged frames are not resumed from.
    File::options().write(true).open(path.join(frames_name(0))).unwrap().set_len(10).unwrap();
    let (journal, done) = Journal::open(&output, "job", SHAPE).unwrap();
    assert_eq!((done, journal.resumable_frames()), (vec![0, 0], 0));
    journal.remove().unwrap();
    assert!(samples::is_empty(folder.path()));
}

#[test]
fn a_folder_of_frames_has_its_journal_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let output = Output::new(&folder.path().join("frames/"), Kind::Clip).unwrap();
    assert_eq!(Journal::folder_of(&output), folder.path().join("frames.partial"));
}

#[test]
fn frames_out_of_turn_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = Journal::open(&output(folder.path()), "job", SHAPE).unwrap();
    assert!(journal.append(0, 1, &frame(0, 1)).unwrap_err().to_string().ends_with("frame 0 is due"));
    assert!(journal.append(2, 0, &frame(0, 0)).is_err());
    assert!(journal.append(0, 0, &samples::frame(5, 4, 3, 0)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// After any cut or damage, the frames found are a prefix of those written, and the decode
    /// resumes.
    #[test]
    fn any_cut_or_damage_leaves_a_prefix(committed in 0_usize..=6, more in 0_usize..=6, at in 0_u64..1200, cut: bool) {
        let folder = tempfile::tempdir().unwrap();
        let output = output(folder.path());
        let (mut journal, _) = Journal::open(&output, "job", SHAPE).unwrap();
        fill(&mut journal, 0, 0..committed);
        journal.commit().unwrap();
        fill(&mut journal, 0, committed..more.max(committed));
        let path = journal.folder().join(frames_name(0));
        drop(journal);

        let file = File::options().read(true).write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        if cut {
            file.set_len(at.min(length)).unwrap();
        } else if at < length {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
        }
        let (mut journal, done) = Journal::open(&output, "job", SHAPE).unwrap();
        let whole = (at / record_bytes(&SHAPE)) as usize;
        prop_assert_eq!(done[0], committed.min(whole));
        assert_frames(&journal, &done);
        fill(&mut journal, 0, done[0]..6);
        journal.commit().unwrap();
        assert_frames(&journal, &[6, 0]);
    }
}

#[test]
fn what_others_planted_is_neither_read_nor_written() {
    let place = tempfile::tempdir().unwrap();
    let output = output(place.path());
    let folder = place.path().join("a.gif.partial");
    let victim = place.path().join("victim");
    let plant = |name: &str| {
        let _ = fs::remove_dir_all(&folder);
        fs::write(&victim, "precious").unwrap();
        fs::create_dir(&folder).unwrap();
        folder.join(name)
    };
    for name in [LOCK, JOB, "frames-0.f32", "frames-1.f32"] {
        std::os::unix::fs::symlink(&victim, plant(name)).unwrap();
        let error = Journal::open(&output, "job", SHAPE).unwrap_err();
        assert!(error.is_input() && error.to_string().contains("is a link, which is not followed"), "{name}: {error}");
        fs::hard_link(&victim, plant(name)).unwrap();
        let error = Journal::open(&output, "job", SHAPE).unwrap_err();
        assert!(error.is_input() && error.to_string().contains("has a second name elsewhere"), "{name}: {error}");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious", "{name}");
    }
    // The name of an unfinished job: the link is removed, not its target.
    std::os::unix::fs::symlink(&victim, plant(NEW_JOB)).unwrap();
    let (mut journal, _) = Journal::open(&output, "job", SHAPE).unwrap();
    journal.commit().unwrap();
    journal.remove().unwrap();
    assert!(!folder.exists() && fs::read_to_string(&victim).unwrap() == "precious");

    let elsewhere = place.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &folder).unwrap();
    let error = Journal::open(&output, "job", SHAPE).unwrap_err();
    assert!(error.is_input() && error.to_string().contains("not a folder of this program's"), "{error}");
    assert!(samples::is_empty(&elsewhere));
}

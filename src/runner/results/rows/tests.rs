use super::*;
use proptest::prelude::*;

fn metrics(step: u64) -> MetricsRow {
    MetricsRow {
        step,
        tokens_seen: step * 2048,
        loss: 6.25 / step as f32,
        val_loss: step.is_multiple_of(5).then_some(1.5),
        lr: 1e-3 / step as f64,
        grad_norm: 0.1,
        ..MetricsRow::default()
    }
}

fn timing(step: u64, phase: Phase) -> TimingRow {
    TimingRow {
        tok_s: Some(4096.0),
        plan_mem_mib: Some(12.5),
        ..TimingRow::timed(step, phase, 0.5 * step as f64, 480.25)
    }
}

#[test]
fn files_look_as_documented() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.csv");
    let mut writer = RowWriter::create(&path).unwrap();
    for step in 4..=5 {
        writer.append(&metrics(step)).unwrap();
    }
    let terms =
        MetricsRow { z_loss: Some(0.5), smoothing_loss: Some(0.25), ema_val_loss: Some(1.75), ..metrics(6) };
    writer.append(&MetricsRow { loss: f32::NAN, grad_norm: f32::INFINITY, ..terms }).unwrap();
    insta::assert_snapshot!(std::fs::read_to_string(&path).unwrap(), @r"
    step,tokens_seen,loss,val_loss,lr,grad_norm,z_loss,smoothing_loss,ema_val_loss
    4,8192,1.5625,,0.00025,0.1,,,
    5,10240,1.25,1.5,0.0002,0.1,,,
    6,12288,NaN,,0.00016666666666666666,inf,0.5,0.25,1.75
    ");
    let path = dir.path().join("timing.csv");
    let mut writer = RowWriter::create(&path).unwrap();
    writer.append(&timing(1, Phase::Warmup)).unwrap();
    let sampled = TimingRow {
        gpu_util_pct: Some(98.5),
        throttle: Some("power_cap+thermal".to_owned()),
        hfu_pct: Some(61.5),
        communication_ms: Some(6.5),
        exposed_communication_ms: Some(1.5),
        slowest_rank: Some(3),
        written_step: Some(4),
        energy_j: Some(640.5),
        ..timing(1, Phase::Eval)
    };
    writer.append(&sampled).unwrap();
    insta::assert_snapshot!(std::fs::read_to_string(&path).unwrap(), @r"
    step,phase,wall_s,step_ms,data_wait_ms,tok_s,tok_s_per_device,tflops_per_device,mfu_pct,plan_mem_mib,rss_mib,peak_mem_mib,driver_allocations,gpu_allocated_mib,gpu_reserved_mib,gpu_util_pct,sm_clock_mhz,mem_clock_mhz,power_w,temperature_c,throttle,hfu_pct,communication_ms,exposed_communication_ms,slowest_rank,written_step,energy_j,j_per_step,j_per_token
    1,warmup,0.5,480.25,,4096.0,,,,12.5,,,,,,,,,,,,,,,,,,,
    1,eval,0.5,480.25,,4096.0,,,,12.5,,,,,,98.5,,,,,power_cap+thermal,61.5,6.5,1.5,3,4,640.5,,
    ");
    assert_eq!(read::<TimingRow>(&path).unwrap(), [timing(1, Phase::Warmup), sampled]);
}

/// After a failed sync the system may have dropped rows, and the next sync succeeds all the same.
#[test]
fn a_sync_after_a_failed_one_makes_the_same_rows_durable_or_fails() {
    type Loss = fn(&[u8], usize) -> Vec<u8>;
    let losses: [(&str, bool, Loss); 5] = [
        ("nothing", true, |bytes, _| bytes.to_vec()),
        ("the end", false, |bytes, synced| bytes[..synced].to_vec()),
        ("zeros", false, |bytes, synced| [&bytes[..synced], &vec![0; bytes.len() - synced]].concat()),
        ("a byte", false, |bytes, _| [&bytes[..bytes.len() - 2], b"9\n"].concat()),
        ("everything", false, |_, _| Vec::new()),
    ];
    for (lost, works, loss) in losses {
        for is_deferred in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("metrics.csv");
            let mut writer = RowWriter::create(&path).unwrap();
            writer.append(&metrics(1)).unwrap();
            writer.sync().unwrap();
            let synced = writer.written as usize;
            writer.append(&metrics(2)).unwrap();
            writer.durable.failed.store(true, Ordering::Relaxed);
            let whole = std::fs::read(&path).unwrap();
            std::fs::write(&path, loss(&whole, synced)).unwrap();
            for _ in 0..2 {
                let ended = match is_deferred {
                    true => writer.deferred_sync().and_then(|sync| sync()),
                    false => writer.sync(),
                };
                assert_eq!(ended.is_ok(), works, "{lost}: {ended:?}");
            }
            if works {
                writer.append(&metrics(3)).unwrap();
                let rows = read::<MetricsRow>(&path).unwrap();
                assert_eq!(rows.iter().map(Row::step).collect::<Vec<_>>(), [1, 2, 3]);
                assert!(std::fs::read(&path).unwrap().starts_with(&whole));
            }
        }
    }
}

#[test]
fn an_existing_file_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.csv");
    RowWriter::<MetricsRow>::create(&path).unwrap();
    assert!(RowWriter::<MetricsRow>::create(&path).unwrap_err().message().contains("metrics.csv"));
}

/// A run killed at any byte after the checkpoint's row and then resumed ends with the bytes of an
/// uninterrupted run.
#[test]
fn resume_gives_the_uninterrupted_bytes_whatever_was_torn() {
    let dir = tempfile::tempdir().unwrap();
    let whole = dir.path().join("whole.csv");
    let mut writer = RowWriter::create(&whole).unwrap();
    let mut checkpoint_at = 0;
    for step in 1..=12 {
        writer.append(&metrics(step)).unwrap();
        if step == 7 {
            checkpoint_at = std::fs::metadata(&whole).unwrap().len() as usize;
        }
    }
    let expected = std::fs::read(&whole).unwrap();
    let torn = dir.path().join("torn.csv");
    for length in checkpoint_at..=expected.len() {
        std::fs::write(&torn, &expected[..length]).unwrap();
        let (mut writer, cut) = RowWriter::resume(&torn, 7, None, &[]).unwrap();
        let removed = &expected[checkpoint_at..length];
        let rows_cut = removed.iter().filter(|&&byte| byte == b'\n').count();
        let bytes_cut = removed.len() as u64;
        let steps_cut = (rows_cut > 0).then_some((8, 7 + rows_cut as u64));
        let last = Some(metrics(7));
        let expected_cut = ResumedRows { last, rows_kept: 7, rows_cut, steps_cut, bytes_cut, damage: None };
        assert_eq!(cut, expected_cut, "{length}");
        for step in 8..=12 {
            writer.append(&metrics(step)).unwrap();
        }
        assert_eq!(std::fs::read(&torn).unwrap(), expected, "{length}");
    }
}

/// A resume that itself cannot save, as on a disk that is still full, loses no row.
#[test]
fn dropped_rows_are_there_until_a_checkpoint_reaches_them() {
    let dir = tempfile::tempdir().unwrap();
    let (path, copy) = (dir.path().join("metrics.csv"), dir.path().join("unsaved-metrics.csv"));
    let mut writer = RowWriter::create(&path).unwrap();
    (1..=9).for_each(|step| writer.append(&metrics(step)).unwrap());
    for (killed_at, reaches) in [(5, 9), (7, 9)] {
        let (mut writer, cut) = RowWriter::resume(&path, 4, None, &[]).unwrap();
        assert_eq!(cut.steps_cut.unwrap().0, 5);
        assert_eq!(read::<MetricsRow>(&copy).unwrap(), (5..=reaches).map(metrics).collect::<Vec<_>>());
        (5..=killed_at).for_each(|step| writer.append(&metrics(step)).unwrap());
        writer.saved(4).unwrap();
        assert!(copy.exists());
    }
    let (mut writer, _) = RowWriter::resume(&path, 4, None, &[]).unwrap();
    (5..=9).for_each(|step| writer.append(&metrics(step)).unwrap());
    writer.saved(8).unwrap();
    assert!(copy.exists());
    writer.saved(9).unwrap();
    assert!(!copy.exists());
    // If the copy cannot be written, nothing is removed.
    let before = std::fs::read(&path).unwrap();
    std::fs::create_dir(&copy).unwrap();
    assert!(RowWriter::<MetricsRow>::resume(&path, 4, None, &[]).is_err());
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

/// Any change before the checkpoint's step is detected, and rows that the checkpoint does not know are
/// removed.
#[test]
fn saved_rows_are_verified() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("timing.csv");
    let mut writer = RowWriter::create(&path).unwrap();
    (1..=3).for_each(|step| writer.append(&timing(step, Phase::Train)).unwrap());
    writer.sync().unwrap();
    let saved = writer.content();
    assert_eq!(saved.bytes, std::fs::metadata(&path).unwrap().len());
    writer.append(&timing(3, Phase::Save)).unwrap();
    writer.append(&timing(4, Phase::Train)).unwrap();
    let whole = std::fs::read_to_string(&path).unwrap();
    let resume = |text: &str| {
        let _ = std::fs::remove_file(unsaved::path(&path));
        std::fs::write(&path, text).unwrap();
        RowWriter::<TimingRow>::resume(&path, 3, Some(&saved), &[])
    };
    let (writer, cut) = resume(&whole).unwrap();
    assert_eq!((cut.rows_kept, cut.steps_cut), (4, Some((4, 4))));
    let kept = std::fs::read_to_string(&path).unwrap();
    assert!(whole.starts_with(&kept) && kept.lines().last().unwrap().starts_with("3,save,"));
    // The hash continues from what is in the file.
    assert_eq!(writer.content().blake3, blake3::hash(kept.as_bytes()).to_hex().as_str());
    let lines: Vec<&str> = whole.lines().collect();
    for wrong in [
        whole.replacen("480.25", "480.26", 1),
        [&lines[..1], &lines[2..]].concat().join("\n"),
        [&lines[..2], &lines[1..]].concat().join("\n"),
        String::new(),
        lines[..2].join("\n") + "\n",
    ] {
        let error = resume(&wrong).unwrap_err();
        assert!(error.message().contains("timing.csv was changed since the checkpoint of step 3"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), wrong);
    }
    // A row that was duplicated after the hashed part.
    let (_, cut) = resume(&[&lines[..4], &lines[3..]].concat().join("\n")).unwrap();
    assert_eq!(cut.rows_kept, 3);
}

/// A row that cannot be written waits for the next one.
#[test]
fn rows_wait_for_a_disk_that_takes_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.csv");
    let mut writer = RowWriter::create(&path).unwrap();
    writer.append(&metrics(1)).unwrap();
    // A read-only handle stands in for a full disk.
    let writable = std::mem::replace(&mut writer.file, File::open(&path).unwrap());
    for step in 2..=3 {
        assert!(writer.append(&metrics(step)).unwrap_err().message().contains("metrics.csv"));
    }
    assert!(writer.sync().is_err());
    assert_eq!(read::<MetricsRow>(&path).unwrap(), [metrics(1)]);
    writer.file = writable;
    writer.sync().unwrap();
    assert_eq!(read::<MetricsRow>(&path).unwrap(), [metrics(1), metrics(2), metrics(3)]);
}

#[test]
fn resume_says_how_far_the_rows_reach() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.csv");
    let mut writer = RowWriter::create(&path).unwrap();
    writer.append(&metrics(1)).unwrap();
    let (_, cut) = RowWriter::<MetricsRow>::resume(&path, 9, None, &[]).unwrap();
    assert_eq!(
        cut,
        ResumedRows {
            last: Some(metrics(1)),
            rows_kept: 1,
            rows_cut: 0,
            steps_cut: None,
            bytes_cut: 0,
            damage: None
        }
    );
    // A file cut off within its header, or missing, starts anew.
    for bytes in [Some(&b"step,tok"[..]), Some(b""), None] {
        std::fs::remove_file(&path).unwrap();
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let (mut writer, cut) = RowWriter::resume(&path, 9, None, &[]).unwrap();
        let nothing = ResumedRows {
            last: None,
            rows_kept: 0,
            rows_cut: 0,
            steps_cut: None,
            bytes_cut: 0,
            damage: None,
        };
        assert_eq!(cut, nothing);
        writer.append(&metrics(1)).unwrap();
        assert_eq!(read::<MetricsRow>(&path).unwrap(), [metrics(1)]);
    }
}

#[test]
fn rows_of_one_step_are_kept_or_cut_together() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("timing.csv");
    let mut writer = RowWriter::create(&path).unwrap();
    for row in
        [timing(1, Phase::Train), timing(1, Phase::Eval), timing(1, Phase::Save), timing(2, Phase::Train)]
    {
        writer.append(&row).unwrap();
    }
    let (_, cut) = RowWriter::<TimingRow>::resume(&path, 1, None, &[]).unwrap();
    assert_eq!((cut.rows_kept, cut.last), (3, Some(timing(1, Phase::Save))));
}

#[test]
fn rows_of_an_older_version_have_blanks_and_are_not_continued() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("timing.csv");
    let row = timing(1, Phase::Train);
    RowWriter::create(&path).unwrap().append(&TimingRow { energy_j: Some(1.5), ..row.clone() }).unwrap();
    let older = |line: &str| line.rsplitn(4, ',').last().unwrap().to_owned();
    let text: Vec<String> = std::fs::read_to_string(&path).unwrap().lines().map(older).collect();
    std::fs::write(&path, text.join("\n") + "\n").unwrap();
    assert_eq!(read::<TimingRow>(&path).unwrap(), [row]);
    let error = RowWriter::<TimingRow>::resume(&path, 1, None, &[]).unwrap_err();
    assert!(error.message().contains("not written by this version"), "{error}");
}

/// Columns of held-out sets come after the others. Every reader of rows reads them, and a resume continues
/// them.
#[test]
fn columns_of_held_out_sets_are_written_read_and_continued() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.csv");
    let sets = ["val_loss/code", "val_loss/news"].map(str::to_owned);
    let with = |step, losses: &[(&str, f32)]| MetricsRow {
        further: losses.iter().map(|(name, loss)| (format!("val_loss/{name}"), *loss)).collect(),
        ..metrics(step)
    };
    let rows = [with(1, &[]), with(2, &[("code", 1.25), ("news", f32::NAN)]), with(3, &[("news", 2.5)])];
    let open = |step, sets: &[String]| RowWriter::<MetricsRow>::resume(&path, step, None, sets);
    let (mut writer, _) = open(0, &sets).unwrap();
    rows.iter().for_each(|row| writer.append(row).unwrap());
    let text = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[0],
        "step,tokens_seen,loss,val_loss,lr,grad_norm,z_loss,smoothing_loss,ema_val_loss,val_loss/code,val_loss/news"
    );
    assert!(
        lines[1].ends_with(",,") && lines[2].ends_with(",1.25,NaN") && lines[3].ends_with(",,2.5"),
        "{text}"
    );
    let found: Vec<MetricsRow> = read(&path).unwrap();
    assert_eq!((&found[0], &found[2]), (&rows[0], &rows[2]));
    assert!(found[1].further["val_loss/news"].is_nan());
    // A resume continues with the same sets, and fails with others.
    let (mut writer, cut) = open(2, &sets).unwrap();
    assert_eq!((cut.rows_kept, cut.rows_cut), (2, 1));
    writer.append(&rows[2]).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    for other in [&sets[..1], &[]] {
        let error = open(2, other).unwrap_err();
        assert!(error.message().contains("the header is `step,"), "{error}");
    }
    // Without sets, the bytes are the same as in files of versions without sets.
    let plain = dir.path().join("plain.csv");
    RowWriter::<MetricsRow>::create(&plain).unwrap().append(&metrics(1)).unwrap();
    let first = lines[1].strip_suffix(",,").unwrap();
    assert_eq!(std::fs::read_to_string(&plain).unwrap().lines().nth(1), Some(first));
    for header in
        ["val_loss/b,val_loss/a", "val_loss/", "other", "val_loss/a,val_loss/a", "val_loss", "ema_val_loss/"]
    {
        std::fs::write(&path, text.replace("val_loss/code,val_loss/news", header)).unwrap();
        assert!(read::<MetricsRow>(&path).unwrap_err().message().contains("the header is"), "{header}");
    }
    std::fs::write(&path, text.replace("1.25,NaN", "x,NaN")).unwrap();
    let error = read::<MetricsRow>(&path).unwrap_err();
    assert!(error.message().contains(":3: not a row: val_loss/code is `x`"), "{error}");
}

#[test]
fn damage_is_an_error_that_names_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("metrics.csv");
    let complain = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let read = read::<MetricsRow>(&path).unwrap_err();
        assert_eq!(RowWriter::<MetricsRow>::resume(&path, 9, None, &[]).unwrap_err(), read);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "a damaged file is left alone");
        read.message().replace(&*dir.path().to_string_lossy(), "DIR")
    };
    let header = "step,tokens_seen,loss,val_loss,lr,grad_norm,z_loss,smoothing_loss,ema_val_loss\n";
    insta::assert_snapshot!(complain("step,loss\n1,2\n"), @"DIR/metrics.csv:1: the header is `step,loss`, not `step,tokens_seen,loss,val_loss,lr,grad_norm,z_loss,smoothing_loss,ema_val_loss`: the file was not written by this version of xrun");
    insta::assert_snapshot!(complain(&format!("{header}1,2,abc,,1,1,,,\n2,2,1,,1,1,,,\n")), @"DIR/metrics.csv:2: not a row: loss is `abc`: invalid float literal");
    insta::assert_snapshot!(complain(&format!("{header}1,2\n2,2,1,,1,1,,,\n")), @"DIR/metrics.csv:2: not a row: 2 columns, not 9");
    insta::assert_snapshot!(complain(&format!("{header}2,2,1,,1,1,,,\n1,2,1,,1,1,,,\n")), @"DIR/metrics.csv:3: step 1 comes after step 2");
}

proptest! {
    #[test]
    fn every_float_reads_back_to_the_same_bits(loss: u32, lr: u64, norm: u32, step: u64, val in proptest::option::of(any::<u32>()), set in proptest::option::of(any::<u32>())) {
        let row = MetricsRow {
            step,
            tokens_seen: !step,
            loss: f32::from_bits(loss),
            val_loss: val.map(f32::from_bits),
            lr: f64::from_bits(lr),
            grad_norm: f32::from_bits(norm),
            z_loss: val.map(f32::from_bits),
            smoothing_loss: None,
            ema_val_loss: None,
            further: [("val_loss/a", set), ("ema_val_loss/a", val)]
                .into_iter()
                .filter_map(|(column, bits)| Some((column.to_owned(), f32::from_bits(bits?))))
                .collect(),
        };
        let further = ["ema_val_loss/a", "val_loss/a", "val_loss/b"].map(str::to_owned).to_vec();
        let mut line = encode(&row, &further).unwrap();
        prop_assert_eq!(line.pop(), Some(b'\n'));
        let columns = Columns { fixed: MetricsRow::COLUMNS, further };
        let back: MetricsRow = decode(&line, &columns).unwrap();
        // NaN has many bit patterns but one spelling.
        let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        prop_assert!(same(back.loss.into(), row.loss.into()));
        prop_assert!(same(back.lr, row.lr));
        prop_assert!(same(back.grad_norm.into(), row.grad_norm.into()));
        prop_assert_eq!(back.val_loss.is_some(), row.val_loss.is_some());
        prop_assert!(same(back.val_loss.unwrap_or(0.0).into(), row.val_loss.unwrap_or(0.0).into()));
        prop_assert_eq!((back.z_loss.is_some(), back.smoothing_loss), (row.z_loss.is_some(), None));
        prop_assert!(same(back.z_loss.unwrap_or(0.0).into(), row.z_loss.unwrap_or(0.0).into()));
        prop_assert_eq!((back.step, back.tokens_seen), (row.step, row.tokens_seen));
        prop_assert!(back.further.keys().eq(row.further.keys()));
        prop_assert!(back.further.values().zip(row.further.values()).all(|(a, b)| same((*a).into(), (*b).into())));
    }

    #[test]
    fn lines_split_at_their_commas_are_those_that_the_library_splits(line in "[a-z0-9.,;' é\t-]{1,40}") {
        let plain = plain_fields(line.as_bytes()).unwrap();
        prop_assert_eq!(plain, quoted_fields(line.as_bytes()).unwrap());
    }

    #[test]
    fn no_file_makes_the_reader_panic(tail: Vec<u8>, with_header: bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.csv");
        let mut bytes = if with_header { Columns::fixed(MetricsRow::COLUMNS).header() } else { Vec::new() };
        bytes.extend(tail);
        std::fs::write(&path, bytes).unwrap();
        let _ = read::<MetricsRow>(&path);
        let _ = RowWriter::<MetricsRow>::resume(&path, 3, None, &[]);
    }
}

/// Ways in which a power cut or a disk damages the end of a file.
const DAMAGE: [fn(&mut [u8]); 5] = [
    |bytes| bytes.fill(0),
    |bytes| bytes.fill(0xff),
    |bytes| bytes.fill(b'\n'),
    |bytes| bytes.fill(b'1'),
    |bytes| bytes.reverse(),
];

/// Writes ten rows of either kind, and returns the bytes with the checkpoint's record at step 6.
fn with_checkpoint<R: Row>(path: &Path, row: impl Fn(u64) -> R) -> (Vec<u8>, SavedRows) {
    let _ = std::fs::remove_file(path);
    let mut writer = RowWriter::create(path).unwrap();
    (1..=6).for_each(|step| writer.append(&row(step)).unwrap());
    let saved = writer.content();
    (7..=10).for_each(|step| writer.append(&row(step)).unwrap());
    (std::fs::read(path).unwrap(), saved)
}

/// Damages every stretch behind the checkpoint, and checks that a resume drops it and keeps its bytes.
fn survives_damage<R: Row + PartialEq + std::fmt::Debug>(file: &str, row: impl Fn(u64) -> R) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(file);
    let (whole, saved) = with_checkpoint(&path, &row);
    let behind = saved.bytes as usize;
    for damage in DAMAGE {
        for (from, length) in
            (behind..whole.len()).step_by(7).flat_map(|from| [(from, 1), (from, 9), (from, 40)])
        {
            let mut bytes = whole.clone();
            damage(&mut bytes[from..(from + length).min(whole.len())]);
            std::fs::write(&path, &bytes).unwrap();
            let (mut writer, cut) = RowWriter::<R>::resume(&path, 6, Some(&saved), &[]).unwrap();
            assert_eq!((cut.rows_kept, &cut.last), (6, &Some(row(6))), "{from}");
            if cut.damage.is_some() {
                let copy = std::fs::read(dir.path().join(format!("unsaved-{file}"))).unwrap();
                assert!(copy.ends_with(&bytes[behind..]), "what is dropped is kept as it was");
            }
            (7..=10).for_each(|step| writer.append(&row(step)).unwrap());
            assert_eq!(std::fs::read(&path).unwrap(), whole);
            writer.saved(u64::MAX).unwrap();
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
            // Without a checkpoint nothing is needed of the file.
            std::fs::write(&path, &bytes).unwrap();
            let (mut writer, cut) = RowWriter::<R>::restart(&path, &[]).unwrap();
            assert_eq!(cut.rows_kept, 0);
            (1..=10).for_each(|step| writer.append(&row(step)).unwrap());
            assert_eq!(std::fs::read(&path).unwrap(), whole);
            writer.saved(u64::MAX).unwrap();
        }
        // The same before the checkpoint's end is an error, and changes nothing.
        let mut bytes = whole.clone();
        damage(&mut bytes[behind - 9..behind]);
        std::fs::write(&path, &bytes).unwrap();
        assert!(RowWriter::<R>::resume(&path, 6, Some(&saved), &[]).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }
    let mut bytes = whole.clone();
    bytes[0] = 0;
    std::fs::write(&path, &bytes).unwrap();
    let (_, cut) = RowWriter::<R>::restart(&path, &[]).unwrap();
    assert!(cut.damage.is_some_and(|damage| damage.contains(":1: the header is")));
    assert!(std::fs::read(dir.path().join(format!("unsaved-{file}"))).unwrap().ends_with(&bytes));
}

#[test]
fn damage_behind_the_checkpoint_is_dropped_with_its_rows() {
    survives_damage("metrics.csv", metrics);
    survives_damage("timing.csv", |step| timing(step, Phase::Train));
}

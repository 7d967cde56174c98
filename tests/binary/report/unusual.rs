//! Things that are not regular files, links, endless numbers, and names that are markup: a check ends and
//! reports them.

use super::place::{Place, RUN, seal};
use super::{PLOT, TABLE};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn links_fifos_and_devices_in_a_kept_folder_are_red_and_not_followed() {
    let place = Place::with_page(&[TABLE, PLOT]);
    let run = place.kept(RUN);
    let red = |said: &str| {
        place.xrun(&["report", "--check"]).ended(3).says(&[said]);
    };
    for name in ["l", "m"] {
        symlink(".", run.join(name)).unwrap();
    }
    red("/l is not a regular file: it was put there later");
    fs::remove_file(run.join("l")).unwrap();
    fs::remove_file(run.join("m")).unwrap();
    fifo(&run.join("plots/pipe"));
    red("plots/pipe is not a regular file");
    fs::remove_file(run.join("plots/pipe")).unwrap();
    for (file, said) in
        [("metrics.csv", "metrics.csv cannot be read"), ("manifest.json", "manifest.json is ")]
    {
        let (path, aside) = (run.join(file), place.path("aside"));
        fs::rename(&path, &aside).unwrap();
        fifo(&path);
        red(said);
        for target in [Path::new("/dev/zero"), &aside] {
            fs::remove_file(&path).unwrap();
            symlink(target, &path).unwrap();
            red(said);
        }
        fs::remove_file(&path).unwrap();
        fs::rename(&aside, &path).unwrap();
    }
    place.xrun(&["report", "--check"]).ended(0);
    // A file longer than its manifest says.
    let text = fs::read(run.join("log")).unwrap();
    fs::write(run.join("log"), [text.as_slice(), &[b'x'; 1 << 20]].concat()).unwrap();
    red("log was changed since it was kept");
}

#[test]
fn pages_are_regular_files_and_folders_of_pages_are_not_followed() {
    let place = Place::with_page(&[TABLE]);
    fs::create_dir(place.path("docs")).unwrap();
    for name in ["l", "m"] {
        symlink(".", place.path("docs").join(name)).unwrap();
    }
    place.xrun(&["report", "--check"]).ended(0).says(&["1 block in 1 page is current"]);
    fifo(&place.path("docs/a.md"));
    place.xrun(&["report", "--check"]).ended(1).says(&["docs/a.md is a FIFO, socket or device"]);
    fs::remove_file(place.path("docs/a.md")).unwrap();
    symlink("/dev/zero", place.path("docs/a.md")).unwrap();
    place.xrun(&["report", "--check"]).ended(1).says(&["docs/a.md is a FIFO, socket or device"]);
    fs::remove_file(place.path("docs/a.md")).unwrap();
    // A page may be elsewhere.
    symlink("../README.md", place.path("docs/a.md")).unwrap();
    place.xrun(&["report", "--check"]).ended(3).says(&["docs/a.md:3: block `runs` of `quickstart`"]);
}

#[test]
fn no_number_makes_a_picture_endless() {
    // Losses below a floor are refused, so no page shows a floor that is larger.
    for floor in ["-1e308", "1e-320"] {
        let place = Place::new();
        let summary = format!("results/kept/{RUN}/summary.json");
        let text = place.text(&summary);
        let field = text.lines().find(|line| line.contains("\"floor\"")).unwrap();
        place.edit(&summary, field, &format!("  \"floor\": {floor},"));
        let over = text.lines().find(|line| line.contains("\"val_loss_over_floor\"")).unwrap();
        let floor: f64 = floor.parse().unwrap();
        let ratio = Some(f64::from(1.1169224_f32) / floor).filter(|ratio| floor > 0.0 && ratio.is_finite());
        let ratio = ratio.map_or("null".to_owned(), |ratio| format!("{ratio:e}"));
        place.edit(&summary, over, &format!("  \"val_loss_over_floor\": {ratio},"));
        seal(&place.kept(RUN), "quickstart", RUN.split_once('/').unwrap().1);
        place.page(&[PLOT]);
        place.xrun(&["report"]).ended(0);
        place.xrun(&["report", "--check"]).ended(0);
        let svg = place.text(&format!("results/kept/{RUN}/plots/loss-light.svg"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{floor}");
    }
}

#[test]
fn advice_works_without_version_control() {
    let place = Place::unversioned();
    place.page(&[TABLE]);
    place.xrun(&["report"]).ended(0);
    place.edit(&format!("results/kept/{RUN}/log"), "quickstart", "quikstart");
    let said =
        place.xrun(&["report", "--check"]).ended(3).says(&["log was changed", "back from a copy, or remove"]);
    assert!(!said.stderr.contains("git"), "{}", said.stderr);
    fs::write(place.path("report.lock"), "# x\ny\n").unwrap();
    let said =
        place.xrun(&["report", "--check"]).ended(3).says(&["fix: remove the line and run xrun report"]);
    assert!(!said.stderr.contains("git"), "{}", said.stderr);
}

#[test]
fn links_lead_to_results_with_any_name() {
    for name in ["a b", "a)b", "a#b", "a\"b", "a<b", "a\nb", "a|b", "a%20b", "a]b", "`a`", "a&lt;b"] {
        let place = Place::new();
        fs::rename(place.path("results"), place.path(name)).unwrap();
        place.page(&[TABLE, PLOT]);
        place.xrun(&["--results", name, "report"]).ended(0);
        place.xrun(&["--results", name, "report", "--check"]).ended(0);
        let page = place.text("README.md");
        let targets = page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
        let pictures = page.split("src=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
        let mut count = 0;
        for target in targets.chain(pictures) {
            assert!(place.path(&decoded(target)).exists(), "{name}: {target}");
            count += 1;
        }
        assert!(count >= 3, "{page}");
    }
}

/// Decodes the path of a link as a browser does.
fn decoded(target: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = target.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}

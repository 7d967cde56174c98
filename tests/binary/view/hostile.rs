//! What strangers send and write.

use super::*;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

#[test]
fn who_has_no_cookie_or_another_name_origin_or_method_gets_nothing() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), "secret", "2026-11-24T10:11:12Z", 2, "text");
    let viewed = Viewed::start(dir.path());
    let cookie = format!("Cookie: {}", viewed.cookie);
    let (host, folder) = (viewed.host(), &viewed.folder);
    let refused = |answer: Answer, status: u16| {
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(!answer.body.contains("secret"), "{answer:?}");
        assert!(!answer.head.to_lowercase().contains("access-control"), "{answer:?}");
        assert!(answer.head.contains("Content-Security-Policy: default-src 'none'"), "{answer:?}");
    };
    for target in ["/", "/api/runs", "/assets/page.js", "/?token=", &format!("/?token={}x", viewed.token)] {
        refused(viewed.get_as(target, &[]), 403);
        refused(viewed.get_as(target, &["Cookie: xrun-view=1; a=b"]), 403);
    }
    refused(viewed.get_as(&format!("/api/runs?token={}", viewed.token), &[]), 403);
    for foreign in [
        "Origin: http://evil.test",
        "Origin: null",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
    ] {
        refused(viewed.get_as("/api/runs", &[&cookie, foreign]), 403);
    }
    // Outside the page's folder, which other servers on this machine do not know, the cookie is worthless.
    for target in ["/", "/api/runs", &format!("/?token={}", viewed.token), folder] {
        refused(viewed.send(format!("GET {target} HTTP/1.1\r\n{host}\r\n{cookie}\r\n\r\n").as_bytes()), 403);
    }
    let token = format!("/?token={}", viewed.token);
    for other in ["Host: evil.test", "Host: evil.test:80", "Host: 127.0.0.1", "X-Other: 1"] {
        for target in ["/api/runs", &token] {
            refused(
                viewed
                    .send(format!("GET {folder}{target} HTTP/1.1\r\n{other}\r\n{cookie}\r\n\r\n").as_bytes()),
                403,
            );
        }
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "CONNECT"] {
        let answer = viewed
            .send(format!("{method} {folder}/api/runs HTTP/1.1\r\n{host}\r\n{cookie}\r\n\r\n").as_bytes());
        assert_eq!(answer.header("allow"), Some("GET, HEAD"));
        refused(answer, 405);
    }
    // The name that a forwarded port has.
    let answer = viewed.send(
        format!("GET {folder}/api/runs HTTP/1.1\r\nHost: localhost:{}\r\n{cookie}\r\n\r\n", viewed.port)
            .as_bytes(),
    );
    assert!(answer.status == 200 && answer.body.contains("secret"), "{answer:?}");
    let answer =
        viewed.send(format!("HEAD {folder}/api/runs HTTP/1.1\r\n{host}\r\n{cookie}\r\n\r\n").as_bytes());
    assert!(answer.status == 200 && answer.body.is_empty(), "{answer:?}");
    let page = viewed.get("/");
    assert!(page.status == 200 && page.body.contains("assets/page.js"), "{page:?}");
    assert_eq!(viewed.get("/assets/page.js").header("content-type"), Some("text/javascript; charset=utf-8"));
}

#[test]
fn no_parameter_leads_out_of_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let results = dir.path().join("results");
    let path = run(&results, "small", "2026-11-24T10:11:12Z", 2, "text");
    run(dir.path(), "outside", "2026-11-24T10:11:12Z", 2, "text");
    std::fs::write(dir.path().join("secret"), "precious").unwrap();
    let viewed = Viewed::start(&results);
    let outside = "outside/20261124T101112Z-0123abcd";
    let ways = [
        "..",
        "%2e%2e",
        ".%2e",
        "../..",
        "%2e%2e%2f%2e%2e",
        "%2e%2e/secret",
        "../secret",
        "..%2fsecret",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "%2fetc/passwd",
        "small%00/x",
        "%00",
        "small/..%5c..",
        "latest",
        "small",
        "*",
        "",
        ".",
        &format!("../{outside}"),
        &format!("..%2f{outside}"),
        &outside.replace('/', "%2f"),
        &format!("small%2F..%2F..%2F{outside}"),
        &format!("{}/..", id(&path)),
        &format!("{}%00", id(&path)),
        &dir.path().join(outside).display().to_string(),
    ];
    let kinds = ["run", "curves", "log", "memory", "model", "profile", "comparison", "sweep", "coordinate"];
    for way in ways {
        for kind in kinds {
            let answer = viewed.get(&format!("/api/{kind}/{way}"));
            assert!([400, 404].contains(&answer.status), "{kind}/{way}: {answer:?}");
            assert!(!answer.body.contains("precious") && !answer.body.contains("root:"), "{answer:?}");
        }
        for target in [
            format!("/assets/{way}"),
            format!("/{way}"),
            format!("/api/{way}"),
            format!("/api/differences?id={way}&id={way}"),
        ] {
            let status = viewed.get(&target).status;
            // `/` and `/.` with nothing after them are the page, or nothing.
            assert!([400, 404].contains(&status) || target == "/", "{target}: {status}");
        }
    }
    for wrong in [
        "points=-1",
        "points=x",
        "from=1e3",
        "to=99999999999999999999",
        "scale=../x",
        "smooth=%00",
        "smooth=-1",
    ] {
        assert_eq!(viewed.get(&format!("/api/curves/{}?{wrong}", id(&path))).status, 400, "{wrong}");
    }
    assert_eq!(viewed.get(&format!("/api/log/{}?lines=..", id(&path))).status, 400);
    assert_eq!(viewed.get(&format!("/api/curves/{}?metrics=../x,&points=999999999", id(&path))).status, 200);
}

#[test]
fn nothing_is_read_through_links() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let (results, outside) = (dir.path().join("results"), dir.path().join("outside"));
    let good = run(&results, "good", "2026-11-24T10:11:12Z", 2, "text");
    let other = run(&outside, "other", "2026-11-24T10:11:12Z", 2, "precious");
    std::fs::write(dir.path().join("secret"), "precious\n").unwrap();
    // A recipe's folder, a run's folder, and files of a run.
    symlink(outside.join("other"), results.join("linked-recipe")).unwrap();
    symlink(&other, results.join("good/20261124T101113Z-0123abcd")).unwrap();
    for (second, file) in ["log", "metrics.csv", "summary.json", "recipe.toml", "env.json"].iter().enumerate()
    {
        let run = run(&results, "files", &format!("2026-11-24T10:11:{second:02}Z"), 2, "text");
        let linked = if *file == "summary.json" { other.join(file) } else { dir.path().join("secret") };
        let _ = std::fs::remove_file(run.join(file));
        symlink(linked, run.join(file)).unwrap();
    }
    let comparison = results.join("comparisons/c");
    std::fs::create_dir_all(&comparison).unwrap();
    symlink(&outside, comparison.join("20261124T101112Z-0123abcd")).unwrap();
    let viewed = Viewed::start(&results);
    let table = viewed.document("/api/runs");
    let ids: Vec<&str> =
        table["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [id(&good)], "{table}");
    let damaged = table["damaged"].as_array().unwrap();
    assert_eq!(damaged.len(), 7, "{table}");
    assert!(damaged.iter().all(|sentence| sentence.as_str().unwrap().contains("is a link")), "{table}");
    for kind in ["run", "log", "curves"] {
        let answer = viewed.get(&format!("/api/{kind}/files/20261124T101100Z-0123abcd"));
        assert!(answer.status == 404 && !answer.body.contains("precious"), "{answer:?}");
    }
    // A file that becomes a link while it is being viewed.
    std::fs::remove_file(good.join("log")).unwrap();
    symlink(dir.path().join("secret"), good.join("log")).unwrap();
    let answer = viewed.get(&format!("/api/log/{}", id(&good)));
    assert!([404, 500].contains(&answer.status) && !answer.body.contains("precious"), "{answer:?}");
}

#[test]
fn requests_are_bounded_in_size_time_and_number() {
    let dir = tempfile::tempdir().unwrap();
    let viewed = Viewed::start(dir.path());
    let long = "a".repeat(100_000);
    assert_eq!(viewed.send(format!("GET /{long} HTTP/1.1\r\n\r\n").as_bytes()).status, 414);
    assert_eq!(viewed.send(format!("GET / HTTP/1.1\r\nX-A: {long}\r\n\r\n").as_bytes()).status, 431);
    assert_eq!(viewed.send(b"GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc").status, 400);
    assert_eq!(viewed.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n").status, 400);
    // The sixty-fifth connection in the server's queue finds the others open, unless their time ran out while
    // the machine was busy with something else. A server that is full waits 50 ms for a request, so one that
    // the machine delays for longer may find the connection closed.
    let busy = (0..100).find_map(|_| {
        let open: Vec<TcpStream> = (0..64).map(|_| viewed.connect()).collect();
        (viewed.get("/").status == 503).then_some(open)
    });
    let mut open = busy.expect("a server with 64 open connections is busy");
    // A request must be complete in time; bytes that trickle in do not keep its place.
    let mut slow = open.remove(0);
    slow.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let (began, mut answer) = (Instant::now(), [0; 12]);
    while !slow.peek(&mut answer).is_ok_and(|count| count == answer.len()) {
        assert!(began.elapsed() < PATIENCE, "it waits for as long as bytes come");
        let _ = slow.write_all(b"X");
    }
    assert_eq!(&answer, b"HTTP/1.1 408");
    drop(open);
    let began = Instant::now();
    while viewed.get("/").status != 200 {
        assert!(began.elapsed() < PATIENCE, "closed connections make no room");
    }
}

/// Texts from others are passed on unchanged, as JSON, with a type that no browser runs.
#[test]
fn hostile_names_and_texts_are_data() {
    let dir = tempfile::tempdir().unwrap();
    let text = "</script><script>alert(1)</script>\u{1b}[2J\u{202e}\"'&<!--";
    let path = run(dir.path(), "small", "2026-11-24T10:11:12Z", 2, text);
    let named = dir.path().join("<script>\"'&/20261124T101112Z-<b>");
    std::fs::create_dir_all(named.parent().unwrap()).unwrap();
    std::fs::rename(&path, dir.path().join("moved")).unwrap();
    std::fs::rename(dir.path().join("moved"), &named).unwrap();
    let viewed = Viewed::start(dir.path());
    let answer = viewed.get("/api/runs");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.json()["runs"][0]["id"], id(&named));
    let target = "/api/run/%3Cscript%3E%22%27%26/20261124T101112Z-%3Cb%3E";
    assert_eq!(viewed.document(target)["samples"][0]["text"], text);
}

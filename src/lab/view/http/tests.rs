use super::request::{MAX_HEAD, MAX_LINE};
use super::response::Method;
use super::*;

fn refused(head: &str) -> u16 {
    Request::parse(head.as_bytes()).unwrap_err().status
}

#[test]
fn a_request_is_whole_once_its_head_is() {
    let head = "GET /api/log/a/b?lines=3&lines=4 HTTP/1.1\r\nHost: localhost:1\r\nX-A: 1\r\nx-a: 2\r\n\r\n";
    for end in 0..head.len() {
        assert!(Request::parse(&head.as_bytes()[..end]).unwrap().is_none(), "{end}");
    }
    let request = Request::parse(head.as_bytes()).unwrap().unwrap();
    assert_eq!(
        (request.method, request.path),
        (Method::Get, ["api", "log", "a", "b"].map(String::from).into())
    );
    let request = Request::parse(head.as_bytes()).unwrap().unwrap();
    assert_eq!((request.parameter("lines"), request.parameter("line")), (Some("3"), None));
    assert_eq!((request.header("host"), request.header("x-a")), (Some("localhost:1"), None), "twice is none");
    let head = "HEAD / HTTP/1.0\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(Request::parse(head.as_bytes()).unwrap().unwrap().method, Method::Head);
}

#[test]
fn other_methods_bodies_and_targets_are_refused() {
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "get"] {
        assert_eq!(refused(&format!("{method} / HTTP/1.1\r\n\r\n")), 405, "{method}");
    }
    for head in [
        "GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 0\r\nContent-Length: 5\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET http://evil.test/ HTTP/1.1\r\n\r\n",
        "GET /%zz HTTP/1.1\r\n\r\n",
        "GET / HTTP/2.0\r\n\r\n",
        "\u{1}\u{2}\u{3}\r\n\r\n",
        "GET / HTTP/1.1\r\nno header\r\n\r\n",
    ] {
        assert_eq!(refused(head), 400, "{head:?}");
    }
    let binary = b"GET / HTTP/1.1\r\nX-A: \xff\r\n\r\n";
    assert_eq!(Request::parse(binary).unwrap_err().status, 400);
}

#[test]
fn long_heads_are_refused_before_they_end() {
    assert_eq!(refused(&format!("GET /{}", "a".repeat(MAX_LINE))), 414);
    let line = "GET / HTTP/1.1\r\n";
    assert_eq!(refused(&format!("{line}X-A: {}", "a".repeat(MAX_HEAD))), 431);
    assert_eq!(refused(&format!("{line}{}\r\n", "X-A: 1\r\n".repeat(65))), 431);
    assert!(Request::parse(format!("{line}{}\r\n", "X-A: 1\r\n".repeat(64)).as_bytes()).unwrap().is_some());
}

#[test]
fn every_response_keeps_others_out() {
    let responses = [
        Response::new(Content::Json, &b"{}"[..]),
        Refusal::new(403, "no").response(),
        Response::redirect("./", "a=b".to_owned()),
    ];
    for response in responses {
        let text = String::from_utf8(response.to_bytes(Method::Get)).unwrap();
        for header in [
            "Content-Security-Policy: default-src 'none'; script-src 'self';",
            "frame-ancestors 'none'",
            "X-Content-Type-Options: nosniff",
            "Referrer-Policy: no-referrer",
            "Cache-Control: no-store",
            "Cross-Origin-Resource-Policy: same-origin",
        ] {
            assert!(text.contains(header), "{header} in {text}");
        }
        assert!(!text.to_lowercase().contains("access-control"), "{text}");
        let head = String::from_utf8(response.to_bytes(Method::Head)).unwrap();
        assert!(head.ends_with("\r\n\r\n") && text.starts_with(&head), "{head}");
    }
}

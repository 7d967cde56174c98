//! Access control: only a browser on this machine whose user has the address that xrun printed may read.
//!
//! The address has a random token. It is exchanged for a cookie and a clean address, so that the token ends
//! up in no link, title or referrer. A page of another site can make a browser send requests here, even under
//! its own name (DNS rebinding). So the requested host name must be this machine's, and the page that asks
//! must be this one.
//!
//! Browsers send the cookies of one port to every port of a host, so a server that another user runs on this
//! machine would receive a cookie for `/`. The page therefore lives in a folder with a random name, and the
//! cookie is limited to that folder: only a server that knows the name could obtain it.

use super::http::{Refusal, Request, Response};
use crate::error::{Error, Result};

/// Random bytes of a secret.
const SECRET_BYTES: usize = 32;

/// Random bytes of the folder's name.
const FOLDER_BYTES: usize = 16;

/// The names and secrets that requests are checked against.
#[derive(Debug)]
pub struct Access {
    /// `NAME:PORT`, by which this machine knows the server.
    hosts: [String; 2],
    /// The name of the folder that holds the page.
    folder: String,
    /// The cookie's name. It has the port, because browsers send the cookies of one port to all ports.
    cookie: String,
    /// The secret in the printed address.
    token: Secret,
    /// The secret in the cookie.
    session: Secret,
}

/// How a request is admitted.
#[derive(Debug)]
pub enum Admission<'a> {
    /// It has the token; the response sets the cookie.
    Enter(Response),
    /// It has the cookie, and may read this path in the page's folder.
    Read(&'a [String]),
}

/// A secret as text. Comparing BLAKE3 hashes takes constant time and reveals nothing.
#[derive(Debug)]
struct Secret(String);

/// Returns random bytes as hexadecimal digits.
fn random<const BYTES: usize>() -> Result<String> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|e| Error::failed(format!("cannot get random bytes: {e}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Secret {
    fn random() -> Result<Self> {
        random::<SECRET_BYTES>().map(Self)
    }

    fn matches(&self, text: &str) -> bool {
        blake3::hash(self.0.as_bytes()) == blake3::hash(text.as_bytes())
    }
}

impl Access {
    /// Creates fresh secrets for the server at a port of 127.0.0.1.
    ///
    /// # Errors
    /// If the OS provides no random bytes.
    pub fn new(port: u16) -> Result<Self> {
        Ok(Self {
            hosts: ["127.0.0.1", "localhost"].map(|name| format!("{name}:{port}")),
            folder: random::<FOLDER_BYTES>()?,
            cookie: format!("xrun-view-{port}"),
            token: Secret::random()?,
            session: Secret::random()?,
        })
    }

    /// Returns the address that lets a browser in.
    pub fn address(&self) -> String {
        format!("http://{}/{}/?token={}", self.hosts[0], self.folder, self.token.0)
    }

    /// Checks a request. An admitted request gets the path that it may read in the page's folder.
    ///
    /// # Errors
    /// Refuses requests with neither the cookie nor the token of the address.
    pub fn check<'a>(&self, request: &'a Request) -> Result<Admission<'a>, Refusal> {
        self.check_host(request)?;
        self.check_site(request)?;
        let (folder, path) = request.path.split_first().ok_or_else(unknown)?;
        if *folder != self.folder || path.is_empty() {
            return Err(unknown());
        }
        let is_page = path.iter().all(String::is_empty);
        if let Some(token) = request.parameter("token").filter(|_| is_page) {
            return match self.token.matches(token) {
                true => Ok(Admission::Enter(Response::redirect("./", self.set_cookie()))),
                false => Err(unknown()),
            };
        }
        match request.headers("cookie").any(|cookies| self.is_known(cookies)) {
            true => Ok(Admission::Read(path)),
            false => Err(unknown()),
        }
    }

    /// Checks the requested host name. The name of another server that leads here is an attack (DNS
    /// rebinding).
    fn check_host(&self, request: &Request) -> Result<(), Refusal> {
        let is_own = |host: &str| self.hosts.iter().any(|own| own.eq_ignore_ascii_case(host));
        match request.header("host").is_some_and(is_own) {
            true => Ok(()),
            false => Err(Refusal::new(403, format!("this server is called {}", self.hosts.join(" or ")))),
        }
    }

    /// Checks that the page that asks, if any, is this one.
    fn check_site(&self, request: &Request) -> Result<(), Refusal> {
        let is_own = |origin: &str| {
            let host = origin.strip_prefix("http://");
            host.is_some_and(|host| self.hosts.iter().any(|own| own == host))
        };
        // `none` means that a person typed, pasted or opened the address outside a page.
        let is_near = |site: &str| ["same-origin", "none"].contains(&site);
        match request.headers("origin").all(is_own) && request.headers("sec-fetch-site").all(is_near) {
            true => Ok(()),
            false => Err(Refusal::new(403, "other sites may not read this page")),
        }
    }

    fn set_cookie(&self) -> String {
        let Self { cookie, session, folder, .. } = self;
        format!("{cookie}={}; Path=/{folder}/; HttpOnly; SameSite=Strict", session.0)
    }

    /// Returns true if a cookie header has our cookie.
    fn is_known(&self, cookies: &str) -> bool {
        let pairs = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(name, _)| *name == self.cookie).any(|(_, value)| self.session.matches(value))
    }
}

/// Returns the refusal of a browser that has not opened the printed address.
fn unknown() -> Refusal {
    Refusal::new(
        403,
        "open the address that `xrun view` printed; it has a token, which changes at every start",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str, headers: &[&str]) -> Request {
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        Request::parse(format!("GET {target} HTTP/1.1\r\n{headers}\r\n").as_bytes()).unwrap().unwrap()
    }

    /// Returns the status of a request for a target in the page's folder.
    fn status(access: &Access, target: &str, headers: &[&str]) -> u16 {
        status_at(access, &format!("/{}{target}", access.folder), headers)
    }

    fn status_at(access: &Access, target: &str, headers: &[&str]) -> u16 {
        match access.check(&request(target, headers)) {
            Ok(Admission::Read(_)) => 200,
            Ok(Admission::Enter(response)) => response.status,
            Err(refusal) => refusal.status,
        }
    }

    const HOST: &str = "Host: 127.0.0.1:4000";

    #[test]
    fn the_token_is_exchanged_for_a_cookie_that_lets_in() {
        let access = Access::new(4000).unwrap();
        let folder = &access.folder;
        assert!(folder.len() == 32 && *folder != Access::new(4000).unwrap().folder);
        let target = format!("/{folder}/?token={}", access.token.0);
        assert_eq!(access.address(), format!("http://127.0.0.1:4000{target}"));
        let request = request(&target, &[HOST]);
        let Ok(Admission::Enter(entered)) = access.check(&request) else { panic!("the token lets in") };
        let redirect = entered.redirect.unwrap();
        assert_eq!((entered.status, redirect.location), (303, "./"));
        let (pair, attributes) = redirect.cookie.split_once("; ").unwrap();
        assert_eq!(attributes, format!("Path=/{folder}/; HttpOnly; SameSite=Strict"));
        assert!(!redirect.cookie.contains(&access.token.0));
        for cookies in [format!("Cookie: {pair}"), format!("Cookie: a=b; {pair}; xrun-view-1=c")] {
            assert_eq!(status(&access, "/api/runs", &[HOST, &cookies]), 200);
            // Nothing is served outside the folder.
            for target in ["/", "/api/runs", &format!("/{folder}"), &format!("/{folder}x/"), "/?token=x"] {
                assert_eq!(status_at(&access, target, &[HOST, &cookies]), 403, "{target}");
            }
        }
        // Refused: the token as a cookie, another server's token, another name, a token in another place.
        let other = Access::new(4000).unwrap();
        let wrong = [
            format!("Cookie: xrun-view-4000={}", access.token.0),
            format!("Cookie: xrun-view-4000={}", other.session.0),
            format!("Cookie: {}", pair.replace("4000", "4001")),
            format!("Cookie: {}", &pair[..pair.len() - 1]),
            "Cookie: xrun-view-4000=".to_owned(),
        ];
        for cookies in wrong {
            assert_eq!(status(&access, "/api/runs", &[HOST, &cookies]), 403, "{cookies}");
        }
        for target in [format!("/?token={}", other.token.0), "/?token=".to_owned(), "/".to_owned()] {
            assert_eq!(status(&access, &target, &[HOST]), 403, "{target}");
        }
        assert_eq!(status(&access, &target.replace("/?", "/api/runs?"), &[HOST]), 403);
    }

    #[test]
    fn other_names_origins_and_sites_are_refused_with_the_right_cookie() {
        let access = Access::new(4000).unwrap();
        let cookie = format!("Cookie: xrun-view-4000={}", access.session.0);
        let of = |headers: &[&str]| status(&access, "/api/runs", &[&[cookie.as_str()], headers].concat());
        for host in ["127.0.0.1:4000", "localhost:4000", "LOCALHOST:4000"] {
            assert_eq!(of(&[&format!("Host: {host}")]), 200, "{host}");
        }
        for host in
            ["evil.test", "evil.test:4000", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:4000.evil.test", ""]
        {
            assert_eq!(of(&[&format!("Host: {host}")]), 403, "{host}");
        }
        assert_eq!((of(&[]), of(&[HOST, HOST])), (403, 403));
        let own = ["Origin: http://127.0.0.1:4000", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: none"];
        for header in own {
            assert_eq!(of(&[HOST, header]), 200, "{header}");
        }
        for header in [
            "Origin: http://evil.test",
            "Origin: null",
            "Origin: https://127.0.0.1:4000",
            "Origin: http://127.0.0.1:4001",
            "Sec-Fetch-Site: cross-site",
            "Sec-Fetch-Site: same-site",
        ] {
            assert_eq!(of(&[HOST, header]), 403, "{header}");
        }
        let token = format!("/?token={}", access.token.0);
        assert_eq!(status(&access, &token, &["Host: evil.test"]), 403, "nor does the token help");
    }
}

//! The server: one thread per connection, with a limit on connections.

use super::access::{Access, Admission};
use super::folder::ResultsFolder;
use super::http::{Content, Limits, Refusal, Request, Response, answer, reject};
use super::routes::Routes;
use super::{assets, table::LiveTable};
use crate::error::{Error, Result};
use crate::threads::spawn_detached;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// The most connections answered at once. A browser opens six.
const MAX_CONNECTIONS: usize = 64;

/// The time limits of a connection.
const LIMITS: Limits = Limits { read: Duration::from_secs(5), write: Duration::from_secs(60) };

/// The time limits of a connection beyond the most that are answered.
const BUSY_LIMITS: Limits = Limits { read: Duration::from_millis(50), write: Duration::from_millis(50) };

/// A server on 127.0.0.1 for a results folder.
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    site: Arc<Site>,
}

/// What answers every connection.
#[derive(Debug)]
struct Site {
    access: Access,
    routes: Routes,
    connections: AtomicUsize,
}

impl Server {
    /// Opens a port; 0 picks any free one.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn open(folder: ResultsFolder, port: u16) -> Result<Self> {
        let cannot = |e: std::io::Error| {
            Error::failed(format!("cannot serve at 127.0.0.1:{port}: {e}; choose another --port, or none"))
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(cannot)?;
        let access = Access::new(listener.local_addr().map_err(cannot)?.port())?;
        let routes = Routes::new(LiveTable::new(folder));
        Ok(Self { listener, site: Arc::new(Site { access, routes, connections: AtomicUsize::new(0) }) })
    }

    /// Returns the address that lets a browser in.
    pub fn address(&self) -> String {
        self.site.access.address()
    }

    /// Answers connections until the process ends.
    ///
    /// # Errors
    /// If the port accepts no more connections.
    pub fn serve(&self) -> Result<()> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => self.site.take(stream),
                // The client went away before it was accepted, or no file descriptor is free until another
                // connection closes.
                Err(e) if !is_listener_error(&e) => std::thread::sleep(Duration::from_millis(10)),
                Err(e) => return Err(Error::failed(format!("cannot accept connections: {e}"))),
            }
        }
    }
}

/// Returns true for an error of the listening socket itself, after which no connection will arrive.
fn is_listener_error(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{InvalidInput, NotConnected, Unsupported};
    [InvalidInput, NotConnected, Unsupported].contains(&error.kind())
}

impl Site {
    /// Answers a connection in its own thread.
    fn take(self: &Arc<Self>, mut stream: TcpStream) {
        let before = self.connections.fetch_add(1, Ordering::AcqRel);
        let open = Open(self.clone());
        if before >= MAX_CONNECTIONS {
            reject(&mut stream, BUSY_LIMITS, &Refusal::new(503, "too many connections; try again"));
            return;
        }
        let work = move || {
            let respond =
                |request: &Request| open.0.respond(request).unwrap_or_else(|refusal| refusal.response());
            answer(&mut stream, LIMITS, respond);
        };
        // If no thread can be started, the closure is dropped, which closes the connection.
        let _ = spawn_detached("xrun-view", work);
    }

    fn respond(&self, request: &Request) -> Result<Response, Refusal> {
        let path = match self.access.check(request)? {
            Admission::Enter(response) => return Ok(response),
            Admission::Read(path) => path,
        };
        match path.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
            [""] => Ok(Response::new(Content::Html, assets::PAGE.as_bytes())),
            ["assets", name] => match assets::find(name) {
                Some(asset) => Ok(Response::new(asset.content, asset.text.as_bytes())),
                None => Err(Refusal::new(404, "the page has no such file")),
            },
            ["api", name @ ..] => {
                let document = self.routes.document(name, request)?;
                let json = serde_json::to_vec(&document)
                    .map_err(|e| Refusal::new(500, format!("cannot write JSON: {e}")))?;
                Ok(Response::new(Content::Json, json))
            }
            _ => Err(Refusal::new(404, "there is nothing at this address")),
        }
    }
}

/// An open connection. Dropping it makes room for another, even when its thread panics.
struct Open(Arc<Site>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

// SPDX-License-Identifier: Apache-2.0

// Package see describes a running proxy: its health ([Status]), the programmed Services ([Service]),
// and the way of one connection ([Explanation]). The proxy serves these as JSON on a Unix socket,
// and the commands of the same names print them. Nothing is kept for it except the last warnings,
// and for some minutes after a question about traffic, what traffic counts.
package see

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/logonce"
	"github.com/slipstream-proxy/slipstream/internal/observe/events"
	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// View reads a running proxy and the kernel below it. Its exported fields do not change. Functions are nil
// where the mode, or the source of objects, does not have what they return.
type View struct {
	Proxy   *proxy.Proxy
	Version string
	Mode    string
	Node    string
	Source  string // of objects
	Started time.Time
	IPVS    bool // virtual servers serve Services: package desired's Config.IPVS

	Missing []string // features that the mode needs and the node lacks
	Without [2]bool  // families that are not served for that reason, by desired.Family

	Contact func() source.Contact // with the API server
	Pods    func(ctx context.Context, namespace, fieldSelector string) ([]corev1.Pod, error)

	Describe   func(*desired.Frontend, desired.PoolID) dataplane.Detail // the dataplane's; called in the proxy's loop
	OpenReader func(context.Context) (proxy.Reader, error)              // opens a dataplane that reads the kernel's content

	FastPath   func() (fastpath.Stats, error)
	NoFastPath string           // why FastPath is nil
	Sockets    *socket.Balancer // nil without socketLoadBalancing

	Affinity func() []TableUsage // the numbers of clients with session affinity, by family
	// ClientsBackend returns the backend that a client of a Service port with session affinity had last, or
	// zero, and for how long it is remembered.
	ClientsBackend func(f *desired.Frontend, client netip.Addr) (desired.Backend, time.Duration, error)
	// Rejected returns the numbers of refused and dropped packets by destination.
	Rejected func() (map[desired.FrontendKey]uint64, error)

	Warnings *Warnings

	traffic traffic
	skips   skips
}

// TableUsage is how full a table is.
type TableUsage struct {
	Name    string `json:"name"`
	Entries int    `json:"entries"`
	Limit   int    `json:"limit"`
}

// Warning is a warning that the proxy has logged or recorded as an Event.
type Warning struct {
	At     time.Time `json:"at"` // the last time
	Count  int       `json:"count"`
	Reason string    `json:"reason"`
	Note   string    `json:"note"`
	Remedy string    `json:"remedy,omitempty"` // what to do

	ofService bool
}

// Warnings keeps the last warnings. It is an [events.Recorder] in front of another one. A note is one
// line in both, as it can have text of objects.
type Warnings struct {
	events.Recorder
	mu  sync.Mutex
	all []Warning // the newest last
}

const (
	keptWarnings = 20
	noteLimit    = 1000 // bytes

	keptOfServices = keptWarnings / 2 // as whoever writes Services can cause any number
)

// Add keeps a warning. The same one again counts.
func (w *Warnings) Add(reason, note string) { w.add(reason, note, false) }

func (w *Warnings) add(reason, note string, ofService bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	note = plain.Line(note, noteLimit)
	last := Warning{At: time.Now(), Count: 1, Reason: reason, Note: note, Remedy: remedies[reason], ofService: ofService}
	if i := slices.IndexFunc(w.all, func(o Warning) bool { return o.Reason == reason && o.Note == note }); i >= 0 {
		last.Count += w.all[i].Count
		w.all = slices.Delete(w.all, i, i+1)
	}
	w.all = append(w.all, last)
	most := keptOfServices
	for i := len(w.all) - 1; i >= 0; i-- {
		if w.all[i].ofService {
			if most--; most < 0 {
				w.all = slices.Delete(w.all, i, i+1)
			}
		}
	}
	w.all = w.all[max(0, len(w.all)-keptWarnings):]
}

// Last returns the warnings, the newest first.
func (w *Warnings) Last() []Warning {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Clone(w.all)
	slices.Reverse(all)
	return all
}

// Warning is Recorder's.
func (w *Warnings) Warning(reason, note string) {
	w.Add(reason, note)
	w.Recorder.Warning(reason, plain.Line(note, noteLimit))
}

// OnService is Recorder's.
func (w *Warnings) OnService(service types.NamespacedName, reason, note string) {
	w.add(reason, "Service "+service.String()+": "+note, true)
	w.Recorder.OnService(service, reason, plain.Line(note, noteLimit))
}

// answerTimeout bounds an answer.
const answerTimeout = 30 * time.Second

// Serve answers on the Unix socket at a path until ctx ends, and logs once why it cannot.
func (v *View) Serve(ctx context.Context, path string) {
	defer v.traffic.end()
	var errs logonce.Errors
	ServeSocket(ctx, path, 0o600, func(err error) {
		errs.Log(klog.FromContext(ctx), err, "Could not serve the commands status, services, top and explain, will try again", "socket", path)
	}, v.serve)
}

// ServeSocket calls serve with a listener of a Unix socket, which serve returns for when it is closed: when ctx ends.
// While it cannot listen, it tries again and calls failed with the reason.
func ServeSocket(ctx context.Context, path string, mode fs.FileMode, failed func(error), serve func(context.Context, net.Listener) error) {
	for ctx.Err() == nil {
		l, err := listen(ctx, path, mode)
		if err == nil {
			stop := context.AfterFunc(ctx, func() { l.Close() })
			err = serve(ctx, l)
			if stop(); ctx.Err() != nil {
				return
			}
		}
		failed(err)
		const listenAgain = 5 * time.Second
		select {
		case <-ctx.Done():
		case <-time.After(listenAgain):
		}
	}
}

// listen replaces a socket that no process serves. Those who may use the socket may look into its directory.
func listen(ctx context.Context, path string, mode fs.FileMode) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700|mode&0o044|mode&0o044>>2); err != nil {
		return nil, err
	}
	if c, err := (&net.Dialer{}).DialContext(ctx, "unix", path); err == nil {
		return nil, errors.Join(errors.New("another process serves it"), c.Close())
	}
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	// No other user can connect before the socket has its mode. Files that other threads create meanwhile are
	// less accessible, not more.
	former := unix.Umask(0o177)
	defer unix.Umask(former)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (v *View) serve(ctx context.Context, l net.Listener) error {
	s := &http.Server{Handler: v.handler(), ReadHeaderTimeout: answerTimeout}
	defer context.AfterFunc(ctx, func() { s.Close() })()
	return errors.Join(s.Serve(l), s.Close())
}

func (v *View) handler() http.Handler {
	mux := http.NewServeMux()
	answer(mux, "/status", func(ctx context.Context, _ url.Values) (*Status, error) { return v.Status(ctx) })
	answer(mux, "/services", func(ctx context.Context, q url.Values) ([]Service, error) {
		return v.Services(ctx, Query{Namespace: q.Get("namespace"), Name: q.Get("name"), Endpoints: q.Has("endpoints"), Traffic: q.Has("traffic")})
	})
	answer(mux, "/explain", func(ctx context.Context, q url.Values) (*Explanation, error) {
		return v.Explain(ctx, Question{q.Get("from"), q.Get("to"), q.Get("namespace"), q.Has("probe"), q.Get("probe") == "here"})
	})
	return mux
}

func answer[T any](mux *http.ServeMux, path string, get func(context.Context, url.Values) (T, error)) {
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		Answer(w, r, func(ctx context.Context) (T, error) { return get(ctx, r.URL.Query()) })
	})
}

// Answer serves the result of get as JSON, and its error as text.
func Answer[T any](w http.ResponseWriter, r *http.Request, get func(context.Context) (T, error)) {
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	result, err := get(ctx)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(result) // the client may have disconnected
}

// ErrNoProxy says that no proxy serves the socket.
var ErrNoProxy = errors.New("no proxy answers")

// Ask gets a path from the proxy that serves a socket. If none does before ctx ends, the error wraps ErrNoProxy.
func Ask(ctx context.Context, socket, path string, query url.Values, to any) error {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	transport := &http.Transport{DialContext: dial}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://slipstream"+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	r, err := (&http.Client{Transport: transport}).Do(request)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w on %s in time: it hangs, was stopped by a signal, or has no processor time; see its log", ErrNoProxy, socket)
	case errors.Is(err, unix.EACCES):
		return fmt.Errorf("only root can ask the proxy: %w", errors.Unwrap(err)) // of a url.Error
	case err != nil:
		return fmt.Errorf("%w on %s: %w", ErrNoProxy, socket, errors.Unwrap(err)) // a url.Error
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(r.Body, 64<<10))
		return errors.New(string(text[:max(0, len(text)-1)])) // without the newline
	}
	return json.NewDecoder(r.Body).Decode(to)
}

// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/klog/v2"

	"github.com/slipstream-proxy/slipstream/internal/source"
)

// Options configure a Source. What they ask for beyond the usual kinds is delivered where the API server allows it.
type Options struct {
	NodeName string // of the Node that is watched; required

	FastPath   bool // NetworkPolicies, Namespaces and Pods
	Namespaces bool
	Pods       bool // those of the Node, of which only names, labels, annotations, addresses and the phase remain
	AllNodes   bool // the metadata of all Nodes
	OtherNodes bool // other Nodes

	// OnError is called when the API server cannot be reached or refuses a
	// request, once for each cause while it lasts. Calls are not concurrent.
	// Required.
	OnError func(error)
}

// Source watches an API server. It implements source.Source.
type Source struct {
	Options Options // may be changed before Run
	client  *Client

	heard   atomic.Int64                   // source.Contact.Heard in Unix nanoseconds
	failing atomic.Pointer[source.Contact] // without Heard; nil while requests succeed
}

var _ source.Source = (*Source)(nil)

// New returns a source that watches the API server of a client.
func New(client *Client, o Options) *Source {
	return &Source{client: client, Options: o}
}

// Contact returns the state of the connection. It is safe for concurrent use.
func (s *Source) Contact() (c source.Contact) {
	if f := s.failing.Load(); f != nil {
		c = *f
	}
	if ns := s.heard.Load(); ns != 0 {
		c.Heard = time.Unix(0, ns)
	}
	return c
}

// Run implements source.Source. It returns an error only when it cannot start, not when
// the API server cannot be reached. Logs go to the logger of ctx.
func (s *Source) Run(ctx context.Context, sink func([]source.Event)) error {
	if s.Options.NodeName == "" {
		return errors.New("watching the API server needs the name of this node")
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()

	r := &run{
		source:   s,
		sink:     sink,
		options:  s.Options,
		log:      klog.FromContext(ctx),
		server:   s.client.config.Host,
		missing:  map[string]bool{},
		failing:  map[string]bool{},
		reported: map[string]time.Time{},
	}
	kinds := s.Options.kinds()
	for _, k := range kinds {
		r.missing[k.name] = true
	}
	for _, k := range kinds {
		w, err := newWatcher(r, s.client, k)
		if err != nil {
			return err
		}
		running.Go(func() { w.watch(ctx) })
	}
	<-ctx.Done()
	return nil
}

// run is the state that the watchers of one Run share.
type run struct {
	source  *Source
	sink    func([]source.Event)
	options Options
	log     klog.Logger
	server  string

	mu       sync.Mutex           // also serializes calls of OnError
	missing  map[string]bool      // kinds that have not been listed yet
	failing  map[string]bool      // kinds whose last request failed
	reported map[string]time.Time // when a cause was reported last
}

func (r *run) put(e source.Event) { r.sink([]source.Event{e}) }

// heard records that the API server has sent something.
func (r *run) heard() { r.source.heard.Store(time.Now().UnixNano()) }

// listed records that all objects of a kind have been delivered. After the last kind, the
// source is synced.
func (r *run) listed(k *kind) {
	r.mu.Lock()
	last := r.missing[k.name] && len(r.missing) == 1
	delete(r.missing, k.name)
	r.mu.Unlock()
	if last {
		r.put(source.Event{Type: source.Synced})
	}
}

func (r *run) report(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.options.OnError(err)
}

// reportAgain is the time after which the same cause is reported again.
const reportAgain = 10 * time.Minute

// failed records that a request for a kind failed. It reports each cause once for all kinds,
// and again every reportAgain while it lasts.
func (r *run) failed(kind string, err error) {
	cause := causeOf(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failing[kind] = true
	if r.source.failing.Load() == nil {
		r.source.failing.Store(&source.Contact{Failing: time.Now(), Cause: cause})
	}
	if last, known := r.reported[cause]; known && time.Since(last) < reportAgain {
		r.log.V(2).Info("Request to the API server failed again", "kind", kind, "cause", cause)
		return
	}
	r.reported[cause] = time.Now()
	r.options.OnError(fmt.Errorf("API server %s: cannot list and watch %ss: %s (the ruleset stays; trying again)", r.server, kind, cause))
}

func (r *run) succeeded(kind string) {
	r.heard()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.failing[kind] {
		return
	}
	delete(r.failing, kind)
	if len(r.failing) == 0 {
		clear(r.reported)
		r.source.failing.Store(nil)
		r.log.Info("The API server answers again", "server", r.server)
	}
}

// maxCause is the maximum length of a cause in bytes: the answer of another server can be a
// whole web page.
const maxCause = 300

// causeOf returns an error in one short line, without parts that differ each time: the URL,
// local ports and stream numbers.
func causeOf(err error) string {
	if inURL, is := errors.AsType[*url.Error](err); is {
		err = inURL.Err
	}
	text := err.Error()
	inConn, ofConn := errors.AsType[*net.OpError](err)
	stream, ofStream := errors.AsType[http2.StreamError](err)
	switch {
	case ofConn && inConn.Op != "dial":
		text = fmt.Sprintf("%s %v: %v", inConn.Op, inConn.Addr, inConn.Err)
	case ofStream:
		text = "the API server ended the request: " + stream.Code.String()
	case utilnet.IsProbableEOF(err):
		text = "the connection ended before an answer came"
	}
	if len(text) > maxCause {
		text = text[:maxCause] + "..."
	}
	return text
}

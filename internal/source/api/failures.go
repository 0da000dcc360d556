// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/source"
	"golang.org/x/net/http2"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

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

// errNoAnswer stands for a connection that ends early. client-go hides it behind a watch
// without events.
var errNoAnswer = errors.New("the connection ended before an answer came")

// maxCause is the maximum length of a cause in bytes: the answer of another server can be a
// whole web page.
const maxCause = 300

// causeOf returns an error in one short line, without parts that differ each time: the URL,
// local ports and stream numbers.
func causeOf(err error) string {
	var (
		inURL  *url.Error
		inConn *net.OpError
		stream http2.StreamError
	)
	if errors.As(err, &inURL) {
		err = inURL.Err
	}
	text := err.Error()
	switch {
	case errors.As(err, &inConn) && inConn.Op != "dial":
		text = fmt.Sprintf("%s %v: %v", inConn.Op, inConn.Addr, inConn.Err)
	case errors.As(err, &stream):
		text = "the API server ended the request: " + stream.Code.String()
	case utilnet.IsProbableEOF(err):
		text = errNoAnswer.Error()
	}
	if len(text) > maxCause {
		text = text[:maxCause] + "..."
	}
	return text
}

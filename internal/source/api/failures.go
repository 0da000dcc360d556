// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
	"time"

	"golang.org/x/net/http2"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/klog/v2"
)

// failures records which kinds' requests fail. It reports each cause once for all kinds,
// and again every reportAgain while it lasts.
type failures struct {
	report func(error)
	log    klog.Logger
	server string

	mu       sync.Mutex
	kinds    map[string]bool      // whose last request failed
	reported map[string]time.Time // by cause
}

// reportAgain is the time after which the same cause is reported again.
const reportAgain = 10 * time.Minute

func (f *failures) failed(kind string, err error) {
	cause := causeOf(err)
	f.mu.Lock()
	f.kinds[kind] = true
	last, known := f.reported[cause]
	known = known && time.Since(last) < reportAgain
	if !known {
		f.reported[cause] = time.Now()
	}
	f.mu.Unlock()
	if known {
		f.log.V(2).Info("Request to the API server failed again", "kind", kind, "cause", cause)
		return
	}
	f.report(fmt.Errorf("API server %s: cannot list and watch %ss: %s (what is programmed stays; trying again)", f.server, kind, cause))
}

func (f *failures) succeeded(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.kinds[kind] {
		return
	}
	delete(f.kinds, kind)
	if len(f.kinds) == 0 {
		clear(f.reported)
		f.log.Info("The API server answers again", "server", f.server)
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

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

// trouble is what keeps requests from succeeding, by kind. An operator is told of
// each cause once, when it comes to the first kind, and when all is well again; and
// of what goes on and on, every tellAgain.
type trouble struct {
	tell   func(error)
	log    klog.Logger
	server string

	mu    sync.Mutex
	kinds map[string]bool      // in trouble
	told  map[string]time.Time // by cause
}

// tellAgain is after how long an operator is told of the same cause once more.
const tellAgain = 10 * time.Minute

// is takes note that a request for a kind has failed.
func (t *trouble) is(kind string, err error) {
	cause := causeOf(err)
	t.mu.Lock()
	t.kinds[kind] = true
	last, told := t.told[cause]
	told = told && time.Since(last) < tellAgain
	if !told {
		t.told[cause] = time.Now()
	}
	t.mu.Unlock()
	if told {
		t.log.V(2).Info("Request to the API server failed again", "kind", kind, "cause", cause)
		return
	}
	t.tell(fmt.Errorf("API server %s: cannot list and watch %ss: %s (what is programmed stays; trying again)", t.server, kind, cause))
}

// over takes note that a request for a kind has succeeded.
func (t *trouble) over(kind string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.kinds[kind] {
		return
	}
	delete(t.kinds, kind)
	if len(t.kinds) == 0 {
		clear(t.told)
		t.log.Info("The API server answers again", "server", t.server)
	}
}

// without is the error for a kind that cannot be had.
func without(k *kind, err error) error {
	return fmt.Errorf("going on without %ss, which the API server does not have or does not let this node list: %s", k.name, causeOf(err))
}

// errNoAnswer is what client-go hides: it turns a connection that ends early into a
// watch without events.
var errNoAnswer = errors.New("the connection ended before an answer came")

// maxCause is how long a cause may be, in bytes: answers of what is no API server can
// be whole web pages.
const maxCause = 300

// causeOf is an error in one short line, without what is another each time: the URL,
// port numbers of this end, numbers of streams.
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

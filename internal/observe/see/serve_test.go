// SPDX-License-Identifier: Apache-2.0

package see

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestHungProxy asks a proxy that takes connections and never answers: to those who ask it is none.
func TestHungProxy(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := Ask(ctx, socket, "/status", nil, nil); !errors.Is(err, ErrNoProxy) {
		t.Error(err)
	}
}

// TestCountingEnds checks that what counts connections does not outlive the server of questions.
func TestCountingEnds(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables) // and so conntrack
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var v View
	if err := ns.Do(v.traffic.start); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	v.Serve(ctx, "")
	if v.traffic.mu.Lock(); v.traffic.events != nil {
		t.Error("it goes on counting")
		_ = v.traffic.stop()
	}
	v.traffic.mu.Unlock()
}

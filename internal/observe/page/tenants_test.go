// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
)

// nothing is a source and a dataplane without content.
type nothing struct{}

func (nothing) Run(ctx context.Context, _ func([]source.Event)) error { <-ctx.Done(); return nil }
func (nothing) Reconcile(context.Context, *desired.Change) (s dataplane.Stats, _ error) {
	return s, nil
}
func (nothing) Apply(context.Context, *desired.Change) (s dataplane.Stats, _ error) { return s, nil }
func (nothing) Check(context.Context) error                                         { return nil }
func (nothing) Cleanup(context.Context) error                                       { return nil }
func (nothing) Close() error                                                        { return nil }

// TestManyQuestions asks for 40 explanations at once. A few are worked on, and the others are refused, as each
// reads the kernel's whole content.
func TestManyQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		p := proxy.New(nothing{}, desired.New(desired.Config{}), nothing{}, metrics.New(), proxy.Options{CheckPeriod: time.Hour})
		var all sync.WaitGroup
		all.Go(func() { _ = p.Run(ctx) })
		var working atomic.Int32
		h := Handler(&see.View{Proxy: p, Node: "n1", Pods: func(ctx context.Context, _, _ string) ([]corev1.Pod, error) {
			working.Add(1)
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		for range 40 {
			all.Go(func() {
				r := httptest.NewRequestWithContext(ctx, "GET", "/data/explain?from=ns/pod&to=10.96.0.10:80", nil)
				r.Host = "127.0.0.1:10280"
				h.ServeHTTP(httptest.NewRecorder(), r)
			})
		}
		synctest.Wait()
		if n := working.Load(); n != atOnce {
			t.Errorf("%d explanations are worked on", n)
		}
		stop()
		all.Wait()
	})
}

// TestTextStaysText: names, zones and annotations may be HTML. The page's own scripts write nothing but text into documents,
// and run none of it.
func TestTextStaysText(t *testing.T) {
	parses := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|DOMParser|createContextualFragment|srcdoc|javascript:|\beval\b|\bFunction\(`)
	for _, name := range []string{"page.js", "picture.js", "index.html"} {
		text, err := assets.ReadFile("assets/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if found := parses.FindString(string(text)); found != "" {
			t.Errorf("%s has %s", name, found)
		}
		if strings.HasSuffix(name, ".js") && !strings.Contains(string(text), "textContent") {
			t.Errorf("%s writes no text: how does it show names?", name)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	corev1 "k8s.io/api/core/v1"
)

// FuzzQuery: no question, however odd, ends the process, and each has an answer.
func FuzzQuery(f *testing.F) {
	ctx, stop := context.WithCancel(context.Background())
	p := proxy.New(nothing{}, desired.New(desired.Config{}), nothing{}, metrics.New(), proxy.Options{CheckPeriod: time.Hour})
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	f.Cleanup(func() { stop(); <-ended })
	h := Handler(&see.View{Proxy: p, Node: "n1", Pods: func(context.Context, string, string) ([]corev1.Pod, error) {
		return []corev1.Pod{{Spec: corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.244.0.9"}}}}}, nil
	}})
	f.Add("/data/services", "search=web&sort=rate&descending&page=-9223372036854775808")
	f.Add("/data/services/default/web", "")
	f.Add("/data/explain", "from=default/web&to=[fd00::1]:80/UDP")
	f.Add("/data/explain", "to=web.default.svc:http&from=%zz;a=b")
	f.Add("/../x", "%")
	f.Fuzz(func(t *testing.T, path, query string) {
		r := (&http.Request{Method: "GET", Host: "127.0.0.1:10280", URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{}}).WithContext(t.Context())
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code < 200 || w.Code > 599 {
			t.Errorf("%s?%s: %d", path, query, w.Code)
		}
	})
}

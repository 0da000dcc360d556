// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// TestFlowsMetric counts connections on the fast path by Service.
func TestFlowsMetric(t *testing.T) { engines(t, testFlowsMetric) }

func testFlowsMetric(t *testing.T, engine Engine) {
	w := newWorld(t, Config{Engine: engine, Threshold: threshold})
	tcp, udp := w.stream(lab.TCP, web, false), w.stream(lab.UDP, web, true)
	w.fast(tcp, udp)
	m := metrics.New()
	m.OnFlows(func() (map[types.NamespacedName]int, error) {
		return w.CountFlows(func(visit func(*flows.Flow)) error { return w.flows.Each(t.Context(), visit) })
	})
	a := httptest.NewRecorder()
	m.Handler(klog.Background()).ServeHTTP(a, httptest.NewRequest("GET", "/metrics", nil))
	want := `slipstream_fastpath_flows{namespace="default",service="` + serviceName[web] + `"} 2` + "\n"
	if !strings.Contains(a.Body.String(), want) {
		t.Errorf("no %s in\n%s", want, a.Body)
	}
	w.unharmed(tcp, udp)
}

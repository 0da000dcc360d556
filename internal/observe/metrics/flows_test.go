// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
)

// table is a table of connections: how many there are by destination.
type table struct {
	byDestination map[string]int
	listed        int
	took          time.Duration
	now           time.Time
	err           error
}

func (tab *table) list(visit func(*flows.Flow)) error {
	tab.listed++
	tab.now = tab.now.Add(tab.took)
	for destination, n := range tab.byDestination {
		for range n {
			visit(&flows.Flow{Protocol: desired.TCP, Destination: netip.MustParseAddrPort(destination)})
		}
	}
	return tab.err
}

// service is the Service "s<last byte>" of the addresses 10.96.0.0/16; no others
// are a Service's.
func (tab *table) service(k desired.FrontendKey) (desired.ServicePort, bool) {
	if k.Addr().As4()[1] != 96 {
		return desired.ServicePort{}, false
	}
	return desired.ServicePort{Namespace: "ns", Name: fmt.Sprint("s", k.Addr().As4()[3]), Port: "http"}, true
}

func (tab *table) collector() *flowsCollector {
	return &flowsCollector{list: tab.list, service: tab.service, now: func() time.Time { return tab.now }}
}

func TestFlowsByService(t *testing.T) {
	tab := &table{byDestination: map[string]int{
		"10.96.0.1:80": 2, "10.96.0.1:443": 3, "10.96.0.2:80": 1, "10.244.1.1:80": 4,
	}}
	got := values(t, tab.collector())
	want := map[string]float64{"ns/s1": 5, "ns/s2": 1, "/(none)": 4}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestFlowsOfManyServices(t *testing.T) {
	tab := &table{byDestination: map[string]int{"10.244.1.1:80": 1}}
	for i := range 60 { // from 1 to 60 flows
		tab.byDestination[fmt.Sprintf("10.96.0.%d:80", i+1)] = i + 1
	}
	got := values(t, tab.collector())
	if len(got) != MostServices+2 {
		t.Errorf("%d time series", len(got))
	}
	if got["/(other)"] != 55 || got["/(none)"] != 1 || got["ns/s11"] != 11 || got["ns/s60"] != 60 { // 1 + ... + 10
		t.Errorf("%v", got)
	}
	if _, told := got["ns/s10"]; told {
		t.Error("a Service with few flows is told")
	}
}

// TestFlowsAreNotListedOften has two scrapes listen to one list, and a slow list
// last for longer.
func TestFlowsAreNotListedOften(t *testing.T) {
	tab := &table{byDestination: map[string]int{"10.96.0.1:80": 1}, took: time.Second, now: time.Unix(1000, 0)}
	c := tab.collector()
	values(t, c)
	tab.byDestination["10.96.0.1:80"] = 2
	tab.now = tab.now.Add(flowsRest*time.Second - 1)
	if got := values(t, c); got["ns/s1"] != 1 || tab.listed != 1 {
		t.Errorf("%v after %d lists", got, tab.listed)
	}
	tab.took = 0
	tab.now = tab.now.Add(1)
	if got := values(t, c); got["ns/s1"] != 2 || tab.listed != 2 {
		t.Errorf("%v after %d lists", got, tab.listed)
	}
	tab.now = tab.now.Add(flowsPeriod)
	tab.err = errors.New("the kernel does not tell")
	if _, err := testutil.CollectAndLint(c); err == nil || tab.listed != 3 {
		t.Errorf("%v after %d lists", err, tab.listed)
	}
}

// values are a collector's, by "namespace/service".
func values(t *testing.T, c *flowsCollector) map[string]float64 {
	t.Helper()
	m := New()
	m.registry.MustRegister(c)
	got := map[string]float64{}
	for _, metric := range gathered(t, m)["slipstream_fastpath_flows"].Metric {
		got[metric.Label[0].GetValue()+"/"+metric.Label[1].GetValue()] = metric.Gauge.GetValue()
	}
	return got
}

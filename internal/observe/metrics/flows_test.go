// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
)

// table is a table of connections: their number by Service.
type table struct {
	byService map[types.NamespacedName]int
	counted   int
	took      time.Duration
	now       time.Time
	err       error
}

func (tab *table) count() (map[types.NamespacedName]int, error) {
	tab.counted++
	tab.now = tab.now.Add(tab.took)
	return tab.byService, tab.err
}

func (tab *table) collector() prometheus.Collector {
	return flowsCollector(tab.count, func() time.Time { return tab.now })
}

func named(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: "ns", Name: fmt.Sprint("s", i)}
}

func TestFlowsByService(t *testing.T) {
	tab := &table{byService: map[types.NamespacedName]int{named(1): 5, named(2): 1, {}: 4}}
	got := values(t, tab.collector())
	want := map[string]float64{"ns/s1": 5, "ns/s2": 1, "/(none)": 4}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestFlowsOfManyServices(t *testing.T) {
	tab := &table{byService: map[types.NamespacedName]int{{}: 1}}
	for i := range 60 { // from 1 to 60 flows
		tab.byService[named(i+1)] = i + 1
	}
	got := values(t, tab.collector())
	if len(got) != MostServices+2 {
		t.Errorf("%d time series", len(got))
	}
	if got["/(other)"] != 55 || got["/(none)"] != 1 || got["ns/s11"] != 11 || got["ns/s60"] != 60 { // 1 + ... + 10
		t.Errorf("%v", got)
	}
	if _, found := got["ns/s10"]; found {
		t.Error("a Service with few flows has a series")
	}
}

// TestFlowsAreNotCountedOften checks that two scrapes share one count, and that the result of a
// slow count is used for longer.
func TestFlowsAreNotCountedOften(t *testing.T) {
	tab := &table{byService: map[types.NamespacedName]int{named(1): 1}, took: time.Second, now: time.Unix(1000, 0)}
	c := tab.collector()
	values(t, c)
	tab.byService = map[types.NamespacedName]int{named(1): 2}
	tab.now = tab.now.Add(flowsRest*time.Second - 1)
	if got := values(t, c); got["ns/s1"] != 1 || tab.counted != 1 {
		t.Errorf("%v after %d counts", got, tab.counted)
	}
	tab.took = 0
	tab.now = tab.now.Add(1)
	if got := values(t, c); got["ns/s1"] != 2 || tab.counted != 2 {
		t.Errorf("%v after %d counts", got, tab.counted)
	}
	tab.now = tab.now.Add(flowsPeriod)
	tab.err = errors.New("the kernel refuses")
	if _, err := testutil.CollectAndLint(c); err == nil || tab.counted != 3 {
		t.Errorf("%v after %d counts", err, tab.counted)
	}
}

// values are a collector's, by "namespace/service".
func values(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	m := New()
	m.registry.MustRegister(c)
	got := map[string]float64{}
	for _, metric := range gathered(t, m)["slipstream_fastpath_flows"].Metric {
		got[metric.Label[0].GetValue()+"/"+metric.Label[1].GetValue()] = metric.Gauge.GetValue()
	}
	return got
}

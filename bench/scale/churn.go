// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	churned     = "churn"
	syncFull    = "sync_full"
	syncPartial = "sync_partial"
	rulesAll    = "restore_rules"
	rulesLast   = "restore_last"
)

// churn replaces endpoints of random Services at a constant rate, and meanwhile measures single
// changes from the trigger time in the EndpointSlice's annotation until a connection reaches the
// new endpoint. (A proxy's own metric of this is until it has programmed the change.)
func (m *measurement) churn(ctx context.Context) (err error) {
	begin := time.Now()
	var writer sync.WaitGroup
	var failed error
	var lock sync.Mutex // of the cluster
	others := slices.Clone(m.Others)
	writer.Go(func() {
		for n := 0; time.Since(begin) < m.ChurnTime && failed == nil; n++ {
			next := begin.Add(time.Duration(n) * time.Second / time.Duration(m.Churn))
			if failed = bench.Sleep(ctx, time.Until(next)); failed == nil {
				_, slice := m.replaced(&lock, others[n%len(others)])
				failed = m.write(ctx, slice)
			}
		}
	})
	for n := 0; time.Since(begin) < m.ChurnTime && err == nil; n++ {
		err = m.changeUnderChurn(ctx, &lock, m.Single[n%len(m.Single)])
	}
	writer.Wait()
	if err == nil {
		err = failed
	}
	if err != nil {
		return fmt.Errorf("churn: %w", err)
	}
	m.log("%s: %d changes measured under churn", m.subject, len(m.samples[churned]))
	return nil
}

// replaced replaces the endpoint of a Service, and returns the new one and the slice to write.
func (m *measurement) replaced(lock *sync.Mutex, service int) (netip.Addr, *discoveryv1.EndpointSlice) {
	lock.Lock()
	defer lock.Unlock()
	return m.replaceFirst(service), m.Slice(cluster.IPv4, service, 0)
}

func (m *measurement) changeUnderChurn(ctx context.Context, lock *sync.Mutex, service int) error {
	pod, slice := m.replaced(lock, service)
	return m.prober.client.Do(func() error {
		triggered := time.Now()
		if err := m.write(ctx, slice); err != nil {
			return err
		}
		reached, err := m.prober.until(ctx, frontend(service), triggered, func(a netip.Addr) bool { return a == pod })
		if err == nil {
			m.samples.Add(churned, float64(reached.Sub(triggered)))
		}
		return err
	})
}

// restores reads how long full and partial syncs took, and in iptables mode how many rules they
// had, from the metrics that kube-proxy and Slipstream have in common.
func (m *measurement) restores(ctx context.Context) error {
	status, text, err := m.node.Get(ctx, "http://127.0.0.1:10249/metrics")
	if err != nil || status != http.StatusOK {
		return fmt.Errorf("metrics: status %d, error %v", status, err)
	}
	values := metricsOf(text)
	mean := func(series, metric string) {
		if n := values["kubeproxy_"+metric+`_count{ip_family="IPv4"}`]; n > 0 {
			m.samples.Add(series, values["kubeproxy_"+metric+`_sum{ip_family="IPv4"}`]/n*1e9)
		}
	}
	mean(syncFull, "sync_full_proxy_rules_duration_seconds")
	mean(syncPartial, "sync_partial_proxy_rules_duration_seconds")
	for series, metric := range map[string]string{rulesAll: "iptables_total", rulesLast: "iptables_last"} {
		for _, labels := range []string{`{ip_family="IPv4",table="nat"}`, `{table="nat",ip_family="IPv4"}`} {
			if v, ok := values["kubeproxy_sync_proxy_rules_"+metric+labels]; ok && m.subject.Mode() == "iptables" {
				m.samples.Add(series, v)
			}
		}
	}
	return nil
}

// metricsOf returns the values of metrics in Prometheus' text format, by name and labels.
func metricsOf(text string) map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, found := strings.Cut(strings.TrimSpace(line), "} ")
		if v, err := strconv.ParseFloat(value, 64); found && err == nil {
			all[name+"}"] = v
		}
	}
	return all
}

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
	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	churned      = "churn"
	syncFull     = "sync_full"
	syncPartial  = "sync_partial"
	rulesAll     = "restore_rules"
	rulesLast    = "restore_last"
	healed       = "healed"
	healedChange = "healed_change"
	healedOthers = "healed_others"
	failures     = "restore_failures"
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
	return m.replaceFirst(service), m.Slices(cluster.IPv4, service)[0]
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

// heal removes the chain of one Service, as another program may, and then changes another Service. A
// partial restore of kube-proxy has the rules of all frontends, and so fails, as one of them leads to a
// chain that is gone. It measures from the removal until the first Service answers and until the change of
// the second one has its effect, and how many connections to others fail meanwhile.
func (m *measurement) heal(ctx context.Context) error {
	if m.subject.Mode() != "iptables" || m.Failures == 0 {
		return nil
	}
	before, err := m.failedRestores(ctx)
	for n := 0; n < m.Failures && err == nil; n++ {
		if err = bench.Sleep(ctx, pause); err == nil {
			err = m.calm(ctx, m.proxy.PID())
		}
		if err == nil {
			err = m.healOne(ctx, m.Single[2*n%len(m.Single)], m.Single[(2*n+1)%len(m.Single)])
		}
	}
	if err != nil {
		return fmt.Errorf("without a chain: %w", err)
	}
	after, err := m.failedRestores(ctx)
	m.samples.Add(failures, after-before)
	return err
}

func (m *measurement) healOne(ctx context.Context, damaged, other int) error {
	saved, err := m.node.Run(ctx, "iptables-save", "-t", "nat")
	if err != nil {
		return err
	}
	script, err := removal(string(saved), frontend(damaged).Addr())
	if err != nil {
		return err
	}
	if _, err := m.node.Run(ctx, "sh", "-c", "iptables-restore --noflush <<'END'\n"+script+"END"); err != nil {
		return err
	}
	removed := time.Now()
	stop := m.connectAllTheTime(m.Others[:min(50, len(m.Others))])
	var answered time.Time
	var took time.Duration
	var both errgroup.Group
	both.Go(func() (err error) {
		answered, err = m.awaitAll(ctx, []int{damaged}, removed)
		return err
	})
	both.Go(func() (err error) {
		took, err = m.change(ctx, other)
		return err
	})
	err = both.Wait()
	share := stop()
	if err == nil {
		m.samples.Add(healed, float64(answered.Sub(removed)))
		m.samples.Add(healedChange, float64(took))
		m.samples.Add(healedOthers, share)
	}
	return err
}

// removal is the input of iptables-restore that removes the chain of the Service with a ClusterIP, and
// the rules that lead to it, from a table nat as iptables-save writes it.
func removal(saved string, clusterIP netip.Addr) (string, error) {
	chain, script := "", "*nat\n"
	for line := range strings.Lines(saved) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "-A" || !strings.Contains(line, " -d "+clusterIP.String()+"/32 ") {
			continue
		}
		to := fields[len(fields)-1]
		if strings.HasPrefix(to, "KUBE-SVC-") || strings.HasPrefix(to, "SLIP-SVC-") {
			chain = to
			script += "-D" + strings.TrimPrefix(line, "-A")
		}
	}
	if chain == "" {
		return "", fmt.Errorf("table nat has no chain of the Service with address %v", clusterIP)
	}
	return script + "-F " + chain + "\n-X " + chain + "\nCOMMIT\n", nil
}

// failedRestores is how many partial restores have failed so far.
func (m *measurement) failedRestores(ctx context.Context) (float64, error) {
	_, text, err := m.node.Get(ctx, "http://127.0.0.1:10249/metrics")
	return metricsOf(text)[`kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv4"}`], err
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

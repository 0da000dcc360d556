// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	started     = cost("start", "start until Services answer", bench.Nanoseconds, bench.P50, bench.Lowest, bench.Highest)
	startCPU    = cost("start_cpu", "  processor time", bench.Nanoseconds)
	resting     = cost("rest_cpu", "  at rest, in a second", bench.Nanoseconds)
	changed     = cost("change", "an endpoint replaced", bench.Nanoseconds, bench.P50, bench.P99, bench.Highest)
	changeCPU   = cost("change_cpu", "  processor time, beyond that at rest", bench.Nanoseconds)
	burst       = cost("burst", "", bench.Nanoseconds, bench.P50, bench.Highest)
	peakStart   = cost("peak_rss_start", "peak RSS when started", bench.Bytes)
	peak        = cost("peak_rss", "peak RSS in the end", bench.Bytes)
	syncFull    = cost("sync_full", "a full sync, by its metrics, mean", bench.Nanoseconds)
	syncPartial = cost("sync_partial", "a partial sync, mean", bench.Nanoseconds)
	rulesAll    = cost("restore_rules", "rules of iptables' table nat", bench.Count)
	rulesLast   = cost("restore_last", "  of them in the last restore", bench.Count)
	failedShare = cost("failed_share", "connections that failed meanwhile", bench.Percent)
	manyPorts   = cost("ports", "", bench.Nanoseconds)
)

// cost is a series of which less is better; a text that depends on options is written later.
func cost(name, text string, unit bench.Unit, show ...bench.Statistic) bench.Series {
	return bench.Series{Name: name, Text: text, Unit: unit, Better: bench.Less, Show: show}
}

func measuredSeries(o *options) []bench.Series {
	behind, ports := burst, manyPorts
	behind.Text = fmt.Sprintf("behind after a burst of %s", bench.Thousands(min(o.Burst, o.most()-singles+1)))
	ports.Text = fmt.Sprintf("a new Service with %s ports (Slipstream: a range)", bench.Thousands(o.Ports)) // measured only if there are any
	return []bench.Series{
		started, startCPU, resting, changed, changeCPU, behind, peakStart, peak, syncFull, syncPartial, rulesAll, rulesLast, failedShare, ports,
	}
}

type measurement struct {
	*environment
	node    *node
	subject proxies.Kind
	start   func() error // starts proxy
	proxy   *proxies.Proxy
	prober  *prober
	samples bench.Samples
	resting float64 // processor time at rest, as a part of one processor
}

func (m *measurement) measure(ctx context.Context) (err error) {
	sample, err := m.startProxy(ctx)
	if m.proxy == nil {
		return err
	}
	stop := m.connectAllTheTime(sample)
	for _, step := range []func(context.Context) error{m.startUsage, m.atRest, m.changes, m.bursts, m.restores} {
		if err == nil {
			err = step(ctx)
		}
	}
	m.samples.Add(failedShare.Name, stop())
	if memory, failed := bench.Memory(m.proxy.PID()); err == nil {
		m.samples.Add(peak.Name, float64(memory.VmHWM))
		err = failed
	}
	if err == nil && m.Ports > 0 && m.subject.Mode() == "nftables" {
		err = m.ports(ctx)
	}
	if err != nil {
		err = m.proxy.Explain(err)
	}
	return errors.Join(err, m.proxy.Close())
}

// startProxy measures the start until Services answer. It returns a sample of them.
func (m *measurement) startProxy(ctx context.Context) (sample []int, err error) {
	bench.Quiet(ctx)   // the kernel frees the rules of the subject before
	const sampled = 50 // beside those that changes are made to
	others := m.Rand.Perm(len(m.Others))[:min(sampled, len(m.Others))]
	sample = slices.Concat(m.Single, collect.From(others, func(k int) int { return m.Others[k] }))
	begin := time.Now()
	if err := m.start(); err != nil {
		return nil, err
	}
	answered, err := m.awaitAll(ctx, sample, begin)
	if err == nil {
		m.samples.Add(started.Name, float64(answered.Sub(begin)))
		m.log("%s: Services answer after %v", m.subject, answered.Sub(begin).Round(time.Millisecond))
	}
	return sample, err
}

// connectAllTheTime makes 20 connections a second to the Services of a sample, from now on until
// stop is called, which returns the percentage of those that had no answer within a second.
func (m *measurement) connectAllTheTime(sample []int) (stop func() (failedShare float64)) {
	ctx, cancel := context.WithCancel(context.Background())
	made, failed := 0, 0
	var done sync.WaitGroup
	done.Go(func() {
		_ = m.prober.client.Do(func() error {
			for ; bench.Sleep(ctx, 50*time.Millisecond) == nil; made++ {
				if _, err := connect(frontend(sample[made%len(sample)]), time.Second); err != nil {
					failed++
				}
			}
			return nil
		})
	})
	return func() float64 {
		cancel()
		done.Wait()
		return 100 * float64(failed) / float64(max(made, 1))
	}
}

// awaitAll waits until all Services of a sample answer. They are tried one after the other: a
// Service that has answered continues to do so, so all answer when the last one has.
func (m *measurement) awaitAll(ctx context.Context, sample []int, begin time.Time) (answered time.Time, err error) {
	err = m.prober.client.Do(func() error {
		for _, i := range sample {
			answered, err = m.prober.until(ctx, frontend(i), begin, func(netip.Addr) bool { return true })
			if err != nil {
				return fmt.Errorf("start: Service %s: %w", cluster.Name(i), err)
			}
		}
		return nil
	})
	return answered, err
}

// startUsage measures processor time and memory when the process has nothing more to do.
func (m *measurement) startUsage(ctx context.Context) error {
	cpu, err := m.usedWhenCalm(ctx, m.proxy.PID())
	if err != nil {
		return err
	}
	memory, err := bench.Memory(m.proxy.PID())
	m.samples.Add(startCPU.Name, float64(cpu))
	m.samples.Add(peakStart.Name, float64(memory.VmHWM))
	return err
}

// atRest measures the processor time of a proxy that has nothing to do.
func (m *measurement) atRest(ctx context.Context) error {
	const window = 10 * time.Second
	before, err := bench.Used(m.proxy.PID())
	if err != nil {
		return err
	}
	if err := bench.Sleep(ctx, window); err != nil {
		return err
	}
	after, err := bench.Used(m.proxy.PID())
	m.resting = float64(after-before) / float64(window)
	m.samples.Add(resting.Name, m.resting*float64(time.Second))
	return err
}

// usedWhenCalm returns the processor time of a process when it does next to nothing.
func (m *measurement) usedWhenCalm(ctx context.Context, pid int) (time.Duration, error) {
	if err := m.calm(ctx, pid); err != nil {
		return 0, err
	}
	return bench.Used(pid)
}

// calm waits until the process does next to nothing, for up to --calm.
func (m *measurement) calm(ctx context.Context, pid int) error {
	const window = 500 * time.Millisecond
	before, err := bench.Used(pid)
	for deadline := time.Now().Add(m.calmLimit); err == nil && time.Now().Before(deadline); {
		if err := bench.Sleep(ctx, window); err != nil {
			return err
		}
		now, failed := bench.Used(pid)
		if failed == nil && now-before <= window/25 && len(bench.Children(pid)) == 0 {
			return nil
		}
		before, err = now, failed
	}
	return err
}

func (m *measurement) changes(ctx context.Context) error {
	const least = 3 // are made however long they take
	before, err := bench.Used(m.proxy.PID())
	if err != nil {
		return err
	}
	begin, n := time.Now(), 0
	for ; n < m.Changes && (n < least || time.Since(begin) < m.Budget); n++ {
		// Up to half as long again, so that nothing periodic is always met or missed.
		if err := bench.Sleep(ctx, pause+rand.N(pause/2)); err != nil {
			return err
		}
		took, err := m.change(ctx, m.Single[n%len(m.Single)])
		if err != nil {
			return fmt.Errorf("change %d: %w", n+1, err)
		}
		m.samples.Add(changed.Name, float64(took))
	}
	after, err := m.usedWhenCalm(ctx, m.proxy.PID())
	used := float64(after-before) - m.resting*float64(time.Since(begin))
	m.samples.Add(changeCPU.Name, max(used, 0)/float64(n))
	m.log("%s: %d changes in %v", m.subject, n, time.Since(begin).Round(time.Millisecond))
	return err
}

// change replaces the endpoint of a Service with a single one, and measures from the API
// server's reply until a connection reaches the new one.
func (m *measurement) change(ctx context.Context, service int) (took time.Duration, err error) {
	pod := m.replaceFirst(service)
	err = m.prober.client.Do(func() error {
		if err := m.writeFirst(ctx, service); err != nil {
			return err
		}
		replied := time.Now()
		reached, err := m.prober.until(ctx, frontend(service), replied, func(a netip.Addr) bool { return a == pod })
		took = reached.Sub(replied)
		return err
	})
	return took, err
}

func (m *measurement) bursts(ctx context.Context) error {
	begin := time.Now()
	for k := 0; k < m.Bursts && (k < 1 || time.Since(begin) < m.Budget); k++ {
		err := bench.Sleep(ctx, pause) // or the bursts are one sustained change
		if err == nil {
			err = m.calm(ctx, m.proxy.PID())
		}
		if err == nil {
			err = m.burst(ctx)
		}
		if err != nil {
			return fmt.Errorf("burst %d: %w", k+1, err)
		}
	}
	m.log("%s: %d bursts in %v", m.subject, len(m.samples[burst.Name]), time.Since(begin).Round(time.Millisecond))
	return nil
}

// burst measures from the API server's last reply until the last change has its effect. The
// API server delivers changes in the order in which it accepted them. That the other
// changes have their effect too is checked afterwards, in a sample.
func (m *measurement) burst(ctx context.Context) error {
	some := m.Others
	m.Rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
	some = some[:min(m.Burst-1, len(some))]
	pods := make([]netip.Addr, len(some))
	for k, i := range some {
		pods[k] = m.replaceFirst(i)
	}
	if err := each(len(some), func(k int) error { return m.writeFirst(ctx, some[k]) }); err != nil {
		return err
	}
	behind, err := m.change(ctx, m.Single[m.Rand.IntN(len(m.Single))])
	if err != nil {
		return err
	}
	m.samples.Add(burst.Name, float64(behind))
	return m.prober.client.Do(func() error {
		for k := range min(10, len(some)) {
			_, err := m.prober.until(ctx, frontend(some[k]), time.Now(), func(a netip.Addr) bool { return a == pods[k] })
			if err != nil {
				return fmt.Errorf("endpoint %[2]v of Service %[1]s: %[3]w", cluster.Name(some[k]), pods[k], err)
			}
		}
		return nil
	})
}

// ports measures from the API server's reply to a new Service with many ports until the first one is served.
func (m *measurement) ports(ctx context.Context) (err error) {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "ports"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "other", Port: 1}}}}
	slice := m.Slice(m.Single[0], 0)
	slice.ObjectMeta = metav1.ObjectMeta{Name: svc.Name, Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name}}
	if m.subject.IsSlipstream() {
		svc.Annotations = map[string]string{"slipstream.io/port-ranges": fmt.Sprintf("tcp/%d-%d", cluster.TargetPort, cluster.TargetPort+m.Ports-1)}
	} else {
		svc.Spec.Ports, slice.Ports = nil, nil
		for i := range int32(m.Ports) {
			p := corev1.ServicePort{Name: fmt.Sprint("p", i), Port: cluster.TargetPort + i}
			svc.Spec.Ports = append(svc.Spec.Ports, p)
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port})
		}
	}
	services, endpointSlices := m.site.Plane.Client.CoreV1().Services(namespace), m.site.Plane.Client.DiscoveryV1().EndpointSlices(namespace)
	if _, err := endpointSlices.Create(ctx, slice, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := errors.Join(bench.Sleep(ctx, pause), m.calm(ctx, m.proxy.PID())); err != nil {
		return err
	}
	err = m.prober.client.Do(func() error {
		if svc, err = services.Create(ctx, svc, metav1.CreateOptions{}); err != nil {
			return err
		}
		replied := time.Now()
		to := netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), cluster.TargetPort)
		served, err := m.prober.until(ctx, to, replied, func(netip.Addr) bool { return true })
		m.samples.Add(manyPorts.Name, float64(served.Sub(replied)))
		return err
	})
	none := metav1.DeleteOptions{}
	return errors.Join(err, services.Delete(ctx, svc.Name, none), endpointSlices.Delete(ctx, slice.Name, none))
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
	mean(syncFull.Name, "sync_full_proxy_rules_duration_seconds")
	mean(syncPartial.Name, "sync_partial_proxy_rules_duration_seconds")
	for series, metric := range map[string]string{rulesAll.Name: "iptables_total", rulesLast.Name: "iptables_last"} {
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

var errTooLong = errors.New("not within --timeout")

// prober makes connections on a thread in the client's pod, where its functions are called.
type prober struct {
	client  *lab.Pod
	timeout time.Duration
	ended   <-chan struct{} // of the subject's process
}

// until connects again and again until a wanted pod answers, and returns when it did. The
// time since begin decides how long to wait for an answer and between connections.
func (p *prober) until(ctx context.Context, to netip.AddrPort, begin time.Time, wanted func(pod netip.Addr) bool) (time.Time, error) {
	for {
		elapsed := time.Since(begin)
		pod, err := connect(to, bounded(elapsed/100, 2*time.Millisecond, 100*time.Millisecond))
		now := time.Now()
		if err == nil && wanted(pod) {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return now, ctx.Err()
		case <-p.ended:
			return now, errors.New("it ended")
		default:
		}
		if now.Sub(begin) > p.timeout {
			return now, fmt.Errorf("%w: connections to %v: %v %v", errTooLong, to, pod, err)
		}
		pause := unix.NsecToTimespec(int64(bounded(elapsed/1000, 100*time.Microsecond, 10*time.Millisecond)))
		_, _ = unix.Ppoll(nil, &pause, nil) // more precise than time.Sleep, and holds its thread
	}
}

func bounded(d, least, most time.Duration) time.Duration { return min(max(d, least), most) }

// errSilent says that nothing answers.
var errSilent = errors.New("no answer")

func connect(to netip.AddrPort, wait time.Duration) (pod netip.Addr, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return pod, err
	}
	defer unix.Close(fd)
	// Close by a reset, so that no state of the connection stays behind in the pods.
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return pod, err
	}
	err = unix.Connect(fd, bench.Sockaddr(to))
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return pod, err
	}
	deadline := time.Now().Add(wait)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return pod, errSilent
		}
		t := unix.NsecToTimespec(int64(left))
		n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &t, nil)
		if n > 0 {
			break
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return pod, err
		}
	}
	var a [4]byte
	n, err := unix.Read(fd, a[:])
	if err != nil {
		return pod, err
	}
	if n != len(a) {
		return pod, fmt.Errorf("an answer of %d bytes", n)
	}
	return netip.AddrFrom4(a), nil
}

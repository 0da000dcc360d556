// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	k8s "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

var (
	campaign = flag.String("campaign", "", "try all attacks of tenants for longer, and write the table into this `file`")
	phase    = flag.Duration("phase", 12*time.Second, "how long an attack of the campaign lasts, and the writes that it is compared with")
)

// What one tenant may cost a node, in bytes.
const (
	mostProxyMemory  = 50 << 20
	mostKernelMemory = 50 << 20
)

// oneCommit is how long the proxy may take for the victim's changes, in an attack, though they took less than half of it
// before: they wait for the commit that is under way, such as one of 50,000 new endpoints.
const oneCommit = 250 * time.Millisecond

// busy is the part of the time that processors are idle below which other programs have them: then what the proxy's share
// is by the clock says little, and what it is in processor time counts.
const busy = 0.1

// The namespaces of the campaign.
const (
	victimNamespace   = "victim"
	attackerNamespace = "tenant"
)

// TestTenants has one tenant attack a node, one attack after the other, while another tenant's Services
// change and have connections. None of these fails, and the proxy and the kernel do not need much
// memory. With -campaign, all attacks are tried, each beside as many harmless writes, for long enough that the
// times of the victim's changes and CPU time mean something.
func TestTenants(t *testing.T) {
	if !proxyKind(t).IsSlipstream() {
		t.Skip("limits of Slipstream")
	}
	c := newTenants(t)
	var rows []string
	for _, a := range attacks {
		if !a.short && *campaign == "" {
			continue
		}
		t.Run(a.name, func(t *testing.T) {
			before := c.phase(t, "harmless writes", c.harmless)
			c.victim.check(t, "before "+a.name)
			var unseen measured
			if *campaign != "" {
				c.unseen = true
				unseen = c.phase(t, a.name+", not sent to the proxy", a.write)
				c.clean(t)
				c.unseen = false
			}
			during := c.phase(t, a.name, a.write)
			if during.accepted == 0 {
				t.Errorf("the API server has taken none of %d writes: %v", during.writes, during.refusal)
			}
			if a.check != nil {
				a.check(t, c)
			}
			c.clean(t)
			var after measured
			if *campaign != "" {
				after = c.phase(t, "after "+a.name, c.harmless)
			}
			c.victim.check(t, a.name)
			proxy, kernel := during.proxyMemory-before.proxyMemory, during.kernelMemory-before.kernelMemory
			if proxy > mostProxyMemory || kernel > mostKernelMemory {
				t.Errorf("the proxy has %d MB more, the kernel %d MB", proxy>>20, kernel>>20)
			}
			t.Logf("before %v\nunseen %v\nduring %v\nafter  %v", before, unseen, during, after)
			was, without, is := before.quantiles(0.99), unseen.quantiles(0.99), during.quantiles(0.99)
			if limit := max(2*was.share, oneCommit); *campaign != "" && is.share > limit {
				report := t.Errorf
				if during.idle < busy && is.cpu < limit { // else it sleeps, or does too much
					report = t.Logf
				}
				report("the proxy's share of the p99 of the victim's changes is %v, and was %v; its processor time meanwhile %v, and the processors are idle for %.0f %%",
					is.share, was.share, is.cpu, 100*during.idle)
			}
			rows = append(rows, fmt.Sprintf("| %s | %d | %d of %d | %s, %s, %s | %s, %s | %s, %s | %+d MB | %+d MB | %.0f, %.0f, %.0f %% |", a.name, during.accepted,
				during.failed, during.failed+during.ok, was.since, without.since, is.since, was.share, is.share, was.cpu, is.cpu, max(0, proxy>>20), max(0, kernel>>20),
				100*before.cpu, 100*during.cpu, 100*after.cpu))
		})
	}
	if *campaign != "" && len(rows) == len(attacks) { // not if -run selects some
		c.env.check(writeTable(*campaign, rows))
	}
}

// writeTable replaces what is between the marks of a file.
func writeTable(path string, rows []string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const begin, end = "<!-- written by make tenants -->\n", "<!-- end -->"
	head, rest, ok1 := bytes.Cut(text, []byte(begin))
	_, tail, ok2 := bytes.Cut(rest, []byte(end))
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no marks for the table", path)
	}
	table := "| attack | writes taken | victim's connections failed | p99 of the victim's changes, before, unseen, during | the proxy's share | its processor time | proxy | kernel | CPU before, during, after |\n" +
		"| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n" + strings.Join(rows, "\n") + "\n"
	return os.WriteFile(path, slices.Concat(head, []byte(begin+table+end), tail), 0o644)
}

// tenants is a node with a proxy, and two tenants.
type tenants struct {
	*env
	node   *site.Node
	proxy  *proxies.Proxy
	memory memoryGroup
	victim *victim

	client  k8s.Interface // of the attacker
	hostile *runningPod   // the attacker's pod
	socket  string        // of the proxy's status
	unseen  bool          // the API server sends no proxy what the attacker writes
}

// proxyNameLabel is that of objects which are another proxy's: proxies select them away.
const proxyNameLabel = "service.kubernetes.io/service-proxy-name"

func newTenants(t *testing.T) *tenants {
	s := startCluster(t, upstream.ControlPlaneOptions{})
	c := &tenants{env: newEnvIn(t, s), node: s.Nodes[0]}
	e := c.env
	core := e.Plane.Client.CoreV1()
	for _, name := range []string{victimNamespace, attackerNamespace} {
		_, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		e.check(err)
	}
	c.allowAttacker(t)
	c.hostile = e.pod(0, "attacker")
	c.socket = filepath.Join(t.TempDir(), "slipstream.sock")
	c.proxy = e.start(proxyKind(t), c.node, func(o *proxies.Options) { o.Flags = append(o.Flags, "--status-socket", c.socket) })
	e.allowOptOuts("tenants")
	c.memory = newMemoryGroup(t, c.proxy.PID())
	c.victim = newVictim(c)
	start := serviceOf("start", 1)
	start.Labels = map[string]string{"keep": ""}
	c.check(c.set(t.Context(), start))
	return c
}

// allowAttacker gives a user the rights of the role edit, which a controller puts together from two
// others, in one namespace. Clusters that were older than 1.22 let it also write EndpointSlices.
func (c *tenants) allowAttacker(t *testing.T) {
	rbac := c.Plane.Client.RbacV1()
	_, err := rbac.Roles(attackerNamespace).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "slices"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices"}, Verbs: []string{"*"}}},
	}, metav1.CreateOptions{})
	c.check(err)
	for _, ref := range []rbacv1.RoleRef{
		{Kind: "ClusterRole", Name: "system:aggregate-to-edit"}, {Kind: "ClusterRole", Name: "system:aggregate-to-view"}, {Kind: "Role", Name: "slices"},
	} {
		ref.APIGroup = rbacv1.GroupName
		_, err := rbac.RoleBindings(attackerNamespace).Create(t.Context(), &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(ref.Name, ":", "-")}, RoleRef: ref,
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "attacker"}},
		}, metav1.CreateOptions{})
		c.check(err)
	}
	config := c.Plane.RESTConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: "attacker"}
	c.client, err = k8s.NewForConfig(config)
	c.check(err)
}

// write is the i-th write of an attack.
type write func(ctx context.Context, c *tenants, i int) error

func (c *tenants) harmless(ctx context.Context, _ *tenants, i int) error {
	return c.patch(ctx, "start", fmt.Sprintf(`{"metadata": {"annotations": {"example.com/turn": "%d"}}}`, i))
}

// measured is what a phase has cost.
type measured struct {
	writes, accepted int
	refusal          error // the last one of the API server

	changes    []changed // the victim's
	failed, ok int64     // the victim's connections

	proxyMemory, kernelMemory int64   // the most
	cpu                       float64 // of the proxy, of one processor
	idle                      float64 // part of the time of all processors
}

// quantiles returns those of the whole times of the victim's changes, and of the proxy's share.
func (m measured) quantiles(q float64) (of changed) {
	at := func(get func(changed) time.Duration) time.Duration {
		var all []time.Duration
		for _, c := range m.changes {
			all = append(all, get(c))
		}
		if slices.Sort(all); len(all) == 0 {
			return 0
		}
		return all[int(q*float64(len(all)-1)+0.5)].Round(time.Millisecond)
	}
	return changed{
		at(func(c changed) time.Duration { return c.since }), at(func(c changed) time.Duration { return c.share }), at(func(c changed) time.Duration { return c.cpu }),
	}
}

func (m measured) String() string {
	return fmt.Sprintf("%d of %d writes taken; %d changes, p50, the proxy's share and its processor time %v, p99 %v; %d connections, %d failed; proxy %d MB, kernel %d MB, CPU %.0f %%, idle %.0f %%",
		m.accepted, m.writes, len(m.changes), m.quantiles(0.5), m.quantiles(0.99), m.ok+m.failed, m.failed, m.proxyMemory>>20, m.kernelMemory>>20, 100*m.cpu, 100*m.idle)
}

// pace is the time between writes, if the API server takes them as fast.
const pace = 50 * time.Millisecond

// fewChanges, fewWrites and mostTime are when a phase ends without -campaign.
const fewChanges, fewWrites, mostTime = 10, 40, 6 * time.Second

// phase writes, and measures meanwhile.
func (c *tenants) phase(t *testing.T, name string, do write) (m measured) {
	t.Helper()
	pid := c.proxy.PID()
	c.check(os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0)) // resets VmHWM
	begin, cpu := time.Now(), c.cpu()
	idle, all := idleTime()
	before, ok, failed := c.victim.changed(), c.victim.ok(), c.victim.failed.Load()
	ends := func() bool {
		if *campaign != "" {
			return time.Since(begin) >= *phase && m.writes >= fewWrites || time.Since(begin) >= 3**phase
		}
		return len(c.victim.changed())-len(before) >= fewChanges && m.writes >= fewWrites || time.Since(begin) >= mostTime
	}
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for ; !ends(); m.writes++ {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := do(ctx, c, m.writes)
		cancel()
		if err == nil {
			m.accepted++
		} else {
			m.refusal = err
		}
		m.kernelMemory = max(m.kernelMemory, c.memory.kernel())
		<-tick.C
	}
	// All that was written has been programmed once a later change of the victim has been.
	n := len(c.victim.changed())
	c.until(name+" is programmed", func() error {
		m.kernelMemory = max(m.kernelMemory, c.memory.kernel())
		select {
		case <-c.proxy.Done():
			t.Fatal(c.proxy.Explain(errors.New("the proxy has ended")))
		default:
		}
		if now := len(c.victim.changed()); now < n+2*changers {
			return fmt.Errorf("%d changes of the victim, %d before", now, n)
		}
		return nil
	})
	m.changes = slices.Clone(c.victim.changed()[len(before):])
	m.ok, m.failed = c.victim.ok()-ok, c.victim.failed.Load()-failed
	m.cpu = (c.cpu() - cpu).Seconds() / time.Since(begin).Seconds()
	idleNow, allNow := idleTime()
	m.idle = (idleNow - idle) / (allNow - all)
	m.proxyMemory = c.status("VmHWM") << 10
	return m
}

// status returns a number of the proxy's process.
func (c *tenants) status(of string) (n int64) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.proxy.PID()))
	c.check(err)
	match := regexp.MustCompile(of + `:\s*(\d+)`).FindSubmatch(text)
	n, err = strconv.ParseInt(string(match[1]), 10, 64)
	c.check(err)
	return n
}

// cpu returns the CPU time of the proxy so far.
func (c *tenants) cpu() time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.proxy.PID()))
	if err != nil { // it has ended
		return 0
	}
	fields := bytes.Fields(text[bytes.LastIndexByte(text, ')')+1:])
	var ticks int64 // user and system, of 10 ms
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		c.check(err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// idleTime returns how long all processors have been idle, and for how long they have been, in ticks.
func idleTime() (idle, all float64) {
	text, _ := os.ReadFile("/proc/stat")
	for i, field := range strings.Fields(string(text))[1:9] {
		n, _ := strconv.ParseFloat(field, 64)
		if all += n; i == 3 || i == 4 {
			idle += n
		}
	}
	return idle, all
}

// clean deletes what the attacker has made.
func (c *tenants) clean(t *testing.T) {
	t.Helper()
	all := metav1.ListOptions{LabelSelector: "!keep"}
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	admin := c.Plane.Client
	c.check(admin.DiscoveryV1().EndpointSlices(attackerNamespace).DeleteCollection(t.Context(), now, all))
	c.check(admin.CoreV1().Pods(attackerNamespace).DeleteCollection(t.Context(), now, all))
	c.check(admin.NetworkingV1().NetworkPolicies(attackerNamespace).DeleteCollection(t.Context(), now, metav1.ListOptions{}))
	c.check(admin.CoreV1().RESTClient().Delete().Namespace(attackerNamespace).Resource("services").
		Param("labelSelector", all.LabelSelector).Do(t.Context()).Error())
	n := len(c.victim.changed())
	c.until("the victim's changes after the deletion", func() error {
		if now := len(c.victim.changed()); now < n+2*changers {
			return fmt.Errorf("%d changes of the victim, %d before", now, n)
		}
		return nil
	})
}

// slipstream runs a command that asks the proxy.
func (c *tenants) slipstream(args ...string) string {
	out, err := c.node.Run(c.Context(), slipstreamBinary(c.T), append(args, "--socket", c.socket)...)
	if len(out) == 0 {
		c.check(err)
	}
	return string(out)
}

// set creates or replaces an object of the attacker.
func (c *tenants) set(ctx context.Context, object metav1.Object) (err error) {
	if c.unseen {
		had := object.GetLabels()
		defer object.SetLabels(had)
		labels := map[string]string{proxyNameLabel: "another"}
		maps.Copy(labels, had)
		object.SetLabels(labels)
	}
	switch o := object.(type) {
	case *corev1.Service:
		all := c.client.CoreV1().Services(attackerNamespace)
		if _, err = all.Update(ctx, o, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
			_, err = all.Create(ctx, o, metav1.CreateOptions{})
		}
	case *discoveryv1.EndpointSlice:
		all := c.client.DiscoveryV1().EndpointSlices(attackerNamespace)
		if _, err = all.Update(ctx, o, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
			_, err = all.Create(ctx, o, metav1.CreateOptions{})
		}
	case *corev1.Pod:
		all := c.client.CoreV1().Pods(attackerNamespace)
		if _, err = all.Update(ctx, o, metav1.UpdateOptions{}); apierrors.IsNotFound(err) {
			_, err = all.Create(ctx, o, metav1.CreateOptions{})
		}
	}
	return err
}

// patch changes a Service of the attacker.
func (c *tenants) patch(ctx context.Context, name, patch string) error {
	_, err := c.client.CoreV1().Services(attackerNamespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// victimServices are the Services of the victim. changers change them side by side, each twice a second.
const victimServices, changers = 100, 5

// victim is a tenant whose Services change between two pods.
type victim struct {
	c        *tenants
	services []*corev1.Service
	pods     [2]*runningPod
	loads    []*lab.Load
	failed   atomic.Int64 // connections

	mu        sync.Mutex
	changes   []changed
	delivered map[string]delivery // to a plain client, by resource version
	failure   error               // the first since check
}

// changed is how long a change of the victim took until a connection reached the new endpoint: since the write, and
// since a plain client of the API server had it. The second is the proxy's share, and 0 if the connection was earlier. cpu
// is the processor time of all of the proxy's threads meanwhile, in ticks of 10 ms.
type changed struct{ since, share, cpu time.Duration }

// delivery is when a plain client had a change, and the proxy's processor time then.
type delivery struct {
	at  time.Time
	cpu time.Duration
}

// victimTimeout bounds each connection of the victim. Machines under attack stand still for seconds.
func victimTimeout() lab.ConnectOption { return lab.Timeout(max(5*time.Second, *connectTimeout)) }

// victimNodePort is that of the victim's first Service.
const victimNodePort = 30080

func newVictim(c *tenants) *victim {
	v := &victim{c: c, delivered: map[string]delivery{}, pods: [2]*runningPod{c.env.pod(0, "victim"), c.env.pod(0, "victim")}}
	ctx := c.Context()
	for i := range victimServices {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("web-", i)},
			Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: port}}},
		}
		if i == 0 {
			svc.Spec.Type, svc.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, victimNodePort
		}
		svc, err := c.Plane.Client.CoreV1().Services(victimNamespace).Create(ctx, svc, metav1.CreateOptions{})
		c.check(err)
		v.services = append(v.services, svc)
		_, err = c.Plane.Client.DiscoveryV1().EndpointSlices(victimNamespace).Create(ctx, v.slice(i, 0), metav1.CreateOptions{})
		c.check(err)
	}
	c.until("the proxy serves", func() error {
		select {
		case <-c.proxy.Done():
			c.Fatal(c.proxy.Explain(errors.New("it has ended")))
		default:
		}
		_, err := c.node.Connect(lab.TCP, clusterIP(v.services[0], false))
		return err
	})
	for i := range v.services {
		v.await(i, 0)
	}
	v.failed.Store(0) // of connections before the proxy had started
	v.failure = nil
	client := c.env.client(0)
	for from, to := range map[*lab.Machine]netip.AddrPort{
		client:             clusterIP(v.services[1], false),
		&c.node.Machine:    clusterIP(v.services[2], false),
		&c.Outside.Machine: nodePort(v.services[0], c.node, false),
	} {
		l, err := from.StartLoad(context.Background(), lab.TCP, to, lab.LoadOptions{
			Pace: 20 * time.Millisecond, Connect: []lab.ConnectOption{victimTimeout()},
			Result: func(_ time.Time, _ lab.Reply, err error) {
				v.count(fmt.Errorf("%s to %s: %w", from.Name(), to, err), err != nil)
			},
		})
		c.check(err)
		c.Cleanup(func() { l.Stop() })
		v.loads = append(v.loads, l)
	}
	background, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	c.Cleanup(func() { stop(); done.Wait() })
	config := c.Plane.RESTConfig()
	config.ContentType = "application/vnd.kubernetes.protobuf"
	plain, err := k8s.NewForConfig(config)
	c.check(err)
	done.Go(func() { v.watch(background, plain) })
	for first := range changers {
		done.Go(func() { v.change(background, first) })
	}
	return v
}

// watch notes when a plain client has each change. It watches all that the proxy does, so that what the API server and
// the client need for the attacker's objects is in neither's favour.
func (v *victim) watch(ctx context.Context, plain k8s.Interface) {
	for ctx.Err() == nil {
		w, err := plain.DiscoveryV1().EndpointSlices("").Watch(ctx, metav1.ListOptions{LabelSelector: "!" + proxyNameLabel})
		if err != nil {
			v.c.Logf("the plain client: %v", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		for event := range w.ResultChan() {
			now := time.Now()
			if sl, is := event.Object.(*discoveryv1.EndpointSlice); is && sl.Namespace == victimNamespace {
				cpu := v.c.cpu()
				v.mu.Lock()
				if _, had := v.delivered[sl.ResourceVersion]; !had {
					v.delivered[sl.ResourceVersion] = delivery{now, cpu}
				}
				v.mu.Unlock()
			}
		}
	}
}

// slice is that of a Service, with one of the pods.
func (v *victim) slice(i, pod int) *discoveryv1.EndpointSlice {
	name := fmt.Sprint("web-", i)
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To[int32](targetPort)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{v.pods[pod].Pod.Addr(false).String()}, NodeName: ptr.To(v.c.node.Name())}},
	}
}

// change changes every changers-th Service, twice a second, until ctx ends.
func (v *victim) change(ctx context.Context, first int) {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for turn := 1; ; turn++ {
		for i := first; i < victimServices; i += changers {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			begin := time.Now()
			sl, err := v.c.Plane.Client.DiscoveryV1().EndpointSlices(victimNamespace).Update(ctx, v.slice(i, turn%2), metav1.UpdateOptions{})
			if ctx.Err() != nil {
				return
			}
			if err != nil { // of the API server, which is attacked, too: not a connection
				v.c.Logf("changing the victim's Service %d: %v", i, err)
				continue
			}
			if v.await(i, turn%2); ctx.Err() == nil {
				now, cpu := time.Now(), v.c.cpu()
				v.mu.Lock()
				change := changed{since: now.Sub(begin)}
				if d, ok := v.delivered[sl.ResourceVersion]; ok {
					change.share, change.cpu = now.Sub(d.at), cpu-d.cpu
					delete(v.delivered, sl.ResourceVersion)
				}
				v.changes = append(v.changes, change)
				v.mu.Unlock()
			}
		}
	}
}

// await connects to a Service until a pod answers.
func (v *victim) await(i, pod int) {
	to := clusterIP(v.services[i], false)
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		reply, err := v.c.node.Connect(lab.TCP, to, victimTimeout())
		if err == nil && reply.Server == v.pods[pod].Name() {
			return
		}
		if v.count(fmt.Errorf("%s: %w", to, err), err != nil); time.Since(begin) > *patience {
			v.count(fmt.Errorf("Service %d has no other pod after %v", i, *patience), true)
			return
		}
	}
}

func (v *victim) count(err error, failed bool) {
	if !failed {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.failed.Add(1); v.failure == nil {
		v.failure = err
	}
}

func (v *victim) changed() []changed {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changes
}

// ok returns the connections of the loads so far.
func (v *victim) ok() (n int64) {
	for _, l := range v.loads {
		n += l.Stats().OK
	}
	return n
}

// check fails the test if connections have failed since it was last called.
func (v *victim) check(t *testing.T, when string) {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := v.failed.Swap(0); n > 0 {
		t.Errorf("%s: %d of the victim's connections have failed, the first: %v", when, n, v.failure)
	}
	v.failure = nil
}

// memoryGroup is a control group that counts the kernel's memory for a process.
type memoryGroup struct{ file, key string }

// newMemoryGroup puts a process into a group of its own, of whichever version of control groups has
// the controller for memory. Without one, the kernel's memory is not measured.
func newMemoryGroup(t *testing.T, pid int) (g memoryGroup) {
	for _, v := range []struct{ root, needs, file, key string }{
		{"/sys/fs/cgroup/memory", "memory.kmem.usage_in_bytes", "memory.kmem.usage_in_bytes", ""},
		{"/sys/fs/cgroup", "memory.stat", "memory.stat", "kernel "},
	} {
		dir := filepath.Join(v.root, fmt.Sprint("slipstream-tenants-", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		procs := func(dir string) { _ = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0) }
		procs(dir)
		t.Cleanup(func() { // after the process has ended
			procs(v.root)
			_ = os.Remove(dir)
		})
		if _, err := os.Stat(filepath.Join(dir, v.needs)); err == nil {
			return memoryGroup{filepath.Join(dir, v.file), v.key}
		}
	}
	t.Log("no control group counts memory: the kernel's is not measured")
	return g
}

// kernel returns the kernel's memory, in bytes.
func (g memoryGroup) kernel() (n int64) {
	text, _ := os.ReadFile(g.file)
	for line := range strings.Lines(string(text)) {
		if number, is := strings.CutPrefix(line, g.key); is {
			n, _ = strconv.ParseInt(strings.TrimSpace(number), 10, 64)
			return n
		}
	}
	return 0
}

// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/desired/desiredtest"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/internal/source/api"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// world is one run: a virtual kernel, a virtual API server, and the proxy between them.
type world struct {
	plan    plan
	began   time.Time
	kernel  *kernel
	server  *server
	other   *nfnl.Conn // of another program
	others  uint32     // elements that it has in its own table
	auditor *nftables.Dataplane
	objects desiredtest.Objects
	process *process

	mu        sync.Mutex // the loop's goroutines call before
	armed     []armed
	ranged    bool // the proxy's last change had rules for ranges of ports, which stay while it runs
	tampered  bool // another program has changed Slipstream's tables since the last full write
	allowed   []*dataplane.Content
	strange   string             // what a transaction of the running call left
	content   *dataplane.Content // as last read, for a generation
	contentAt uint32
	readers   []nfnl.Reader
	addresses []netip.Addr
	refused   byte
	silent    map[netip.Addr]bool // endpoints that answer nobody
	violation error
	trace     hash.Hash
	traced    []string // the same as text
	sources   int      // deliveries of node addresses
}

// armed is a failure that waits for an exchange.
type armed struct {
	class class
	after int // exchanges of the class
	times int
	how   int
	arg   uint64
}

type class int

const (
	commits class = iota
	gets
	dumps
	classes
)

// process is a running proxy.
type process struct {
	user      *user
	plane     *nftables.Dataplane
	cancel    context.CancelFunc
	done      chan error
	addresses chan []netip.Addr
	dead      bool // killed
	proxy     *proxy.Proxy
}

// run carries out a plan in a bubble of synctest, and returns what it found.
func run(p plan) *world {
	w := &world{plan: p, began: time.Now(), trace: sha256.New()}
	w.kernel = newKernel(p.Generation)
	w.kernel.refuses = w.refuses
	w.kernel.committed = w.committed
	w.server = newServer([]string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf}[p.Flags&1], uint64(p.Generation))
	w.server.noStreaming = p.Flags&2 != 0
	others, audits := w.kernel.newUser("other"), w.kernel.newUser("auditor")
	w.other = others.dial()
	var err error
	if w.auditor, err = nftables.New(dataplane.Config{NetNS: audits.netns, MasqueradeBit: dataplane.DefaultMasqueradeBit}); err != nil {
		panic(err)
	}
	w.foreign(0)
	w.start()
	for i, s := range p.steps() {
		w.log("step %d: %s", i, s)
		w.step(s)
		if w.failed() != nil {
			break
		}
	}
	if w.failed() == nil {
		w.settle(true)
		time.Sleep(2 * verifyPeriod) // what leads nowhere is only seen then
	}
	w.stop(false)
	w.server.cut("", false)
	if w.failed() == nil {
		w.lasting()
	}
	others.leave()
	audits.leave()
	w.other.Close()
	w.auditor.Close()
	return w
}

func (w *world) log(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := fmt.Sprintf("%v %s", time.Since(w.began), fmt.Sprintf(format, args...))
	if len(w.traced) > 0 && w.traced[len(w.traced)-1] == line {
		return // watches that continue deliver several events at once: how many changes follow depends on the scheduler
	}
	w.traced = append(w.traced, line)
	fmt.Fprintln(w.trace, line)
}

func (w *world) violate(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.violation == nil {
		w.violation = fmt.Errorf("after %v: %s", time.Since(w.began), fmt.Sprintf(format, args...))
	}
}

func (w *world) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.violation
}

// config is that of the desired state, of the proxy and of what it is compared with.
func (w *world) config() desired.Config {
	c := desired.Config{NodeName: desiredtest.ThisNode, Loads: noLoads{}}
	if w.plan.Flags&4 != 0 {
		c.NodePorts.CIDRs = []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}
	}
	if w.plan.Flags&8 != 0 {
		c.DetectLocal.Mode = desired.ByNodeCIDR
	}
	if w.plan.Flags&16 != 0 {
		c.NamespaceChange, c.MaxTable = 1+int(w.plan.Flags>>12)%4, desired.TableSizes()[0]
	}
	return c
}

// verifies says that the proxy compares everything now and then.
func (w *world) verifies() bool { return w.plan.Flags>>10%4 == 0 }

const verifyPeriod = 40011 * time.Millisecond

func (w *world) start() {
	p := &process{user: w.kernel.newUser("slipstream"), done: make(chan error, 1), addresses: make(chan []netip.Addr, 100)}
	p.user.before = func(x exchange) failure { return w.before(p, x) }
	var err error
	if p.plane, err = nftables.New(dataplane.Config{NetNS: p.user.netns, MasqueradeBit: dataplane.DefaultMasqueradeBit, Step: 16 * w.config().NamespaceChange}); err != nil {
		panic(err)
	}
	client, err := api.NewClient(&rest.Config{Host: "http://virtual", Transport: w.server, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: w.server.media}})
	if err != nil {
		panic(err)
	}
	state := desired.New(w.config())
	options := proxy.Options{
		CheckPeriod:   997 * time.Millisecond, // apart from other periods, as what is due at once comes in any order
		MinSyncPeriod: []time.Duration{0, 0, time.Second}[w.plan.Flags>>5%3],
		Readers: func() ([]nfnl.Reader, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return slices.Clone(w.readers), nil
		},
		NodeAddresses: func(ctx context.Context, deliver func([]netip.Addr)) error {
			deliver(w.nodeAddresses())
			for {
				select {
				case a := <-p.addresses:
					deliver(a)
				case <-ctx.Done():
					return nil
				}
			}
		},
		OpenReader: func(context.Context) (proxy.Reader, error) {
			return nftables.New(dataplane.Config{NetNS: p.user.netns, MasqueradeBit: dataplane.DefaultMasqueradeBit})
		},
		NodeName: desiredtest.ThisNode,
		Loads:    &clients{w, state},
		Probe:    func(_ context.Context, to desired.Target, _ bool) error { return w.connect(to.Backend) },
	}
	if w.verifies() {
		options.VerifyPeriod = verifyPeriod
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
	p.cancel = cancel
	p.proxy = proxy.New(api.New(client, api.Options{NodeName: desiredtest.ThisNode, OnError: func(error) {}}), state, &audited{p.plane, w, state, false}, metrics.New(), options)
	w.process = p
	go func() { p.done <- p.proxy.Run(ctx) }()
}

// stop ends the proxy, as a signal does, or kills it: the kernel hears nothing more of it.
func (w *world) stop(kill bool) {
	p := w.process
	w.mu.Lock()
	p.dead = p.dead || kill
	w.mu.Unlock()
	p.cancel()
	if err := <-p.done; err != nil && !p.dead {
		w.violate("the loop ended: %v", err)
	}
	p.plane.Close()
	p.user.leave()
}

func (w *world) nodeAddresses() []netip.Addr {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sources++
	return slices.Clone(w.addresses)
}

// audited is the dataplane. After each of its successful calls, the kernel has to have what the proxy takes for
// programmed, and after each of its transactions, what it had before the call or what it is to have, unless a table of
// slots is incomplete, or backends of a pool wait for the next change.
type audited struct {
	*nftables.Dataplane
	w     *world
	state *desired.State
	rest  bool // the last call left a part
}

func (a *audited) Reconcile(ctx context.Context, full *desired.Change) (dataplane.Stats, error) {
	return a.call(ctx, full, "full", a.Dataplane.Reconcile)
}

func (a *audited) Apply(ctx context.Context, change *desired.Change) (dataplane.Stats, error) {
	return a.call(ctx, change, "change", a.Dataplane.Apply)
}

func (a *audited) call(ctx context.Context, c *desired.Change, kind string, do func(context.Context, *desired.Change) (dataplane.Stats, error)) (dataplane.Stats, error) {
	w := a.w
	w.mu.Lock()
	wasTampered := w.tampered
	w.strange = ""
	w.tampered = w.tampered && kind != "full"
	w.mu.Unlock()
	audit := w.plan.Flags>>8%4 == 0
	if audit && !wasTampered {
		w.allow(w.read(), dataplane.ContentOf(a.state.Reported()))
	}
	stats, err := do(ctx, c)
	w.allow()
	w.mu.Lock()
	w.ranged = c.Ranges
	strange := w.strange
	incomplete := len(stats.Rest)+len(a.state.Partial()) > 0
	rest := a.rest || incomplete
	a.rest = incomplete
	w.tampered = w.tampered || err != nil && wasTampered
	audit = audit && err == nil && !w.tampered && !w.process.dead
	w.mu.Unlock()
	w.log("%s: %s", kind, errnoOf(err))
	if strange != "" && !rest {
		w.violate("%s", strange)
	}
	if audit && !a.rest {
		if diff := dataplane.Difference(dataplane.ContentOf(a.state.Reported()), w.read()); diff != "" {
			w.violate("the kernel lacks what was acknowledged:\n%s", diff)
		}
	}
	return stats, err
}

// errnoOf is the part of an error that is the same in each run.
func errnoOf(err error) string {
	var errno unix.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		return errno.Error()
	}
	return "failed"
}

// read reads the content of Slipstream's tables, unless nothing was committed since the last time.
func (w *world) read() *dataplane.Content {
	var generation uint32
	w.kernel.do(func() { generation = w.kernel.generation })
	w.mu.Lock()
	before, at := w.content, w.contentAt
	w.mu.Unlock()
	if before != nil && at == generation {
		return before
	}
	c, err := w.auditor.Read(context.Background())
	if err != nil {
		w.violate("reading the kernel: %v", err)
	}
	w.mu.Lock()
	w.content, w.contentAt = c, generation
	w.mu.Unlock()
	return c
}

// allow sets the contents that the kernel may have after transactions of the proxy; none for any.
func (w *world) allow(contents ...*dataplane.Content) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.allowed = contents
}

// committed is called after each transaction.
func (w *world) committed(by *user) {
	w.mu.Lock()
	allowed, tampered := w.allowed, w.tampered
	w.mu.Unlock()
	if by.name != "slipstream" || len(allowed) == 0 || tampered || !w.kernel.enters() {
		return
	}
	got := w.read()
	var diffs []string
	for _, want := range allowed {
		diff := dataplane.Difference(want, got)
		if diff == "" {
			return
		}
		diffs = append(diffs, diff)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.strange = cmp.Or(w.strange, fmt.Sprintf("a transaction left what is neither the old content nor the new one; from the old:\n%s\nfrom the new:\n%s", diffs[0], diffs[1]))
}

// before says what goes wrong with an exchange of a process.
func (w *world) before(p *process, x exchange) (f failure) {
	w.mu.Lock()
	if p.dead {
		w.mu.Unlock()
		return failure{send: unix.EPERM, lose: true}
	}
	c := gets
	switch {
	case x.commit:
		c = commits
	case x.dump:
		c = dumps
	}
	var due *armed
	for i := range w.armed {
		a := &w.armed[i]
		switch {
		case a.class != c || a.times == 0:
		case a.after > 0:
			a.after--
		case due == nil:
			a.times--
			due = a
		}
	}
	w.mu.Unlock()
	if due == nil {
		return failure{}
	}
	how := failures[c][due.how%len(failures[c])]
	w.log("failure: %s", how.name)
	how.do(w, p, due.arg, &f)
	return f
}

// failures are what can go wrong with each class of exchanges.
var failures = [classes][]struct {
	name string
	do   func(w *world, p *process, arg uint64, f *failure)
}{
	commits: {
		{"a lost acknowledgement", func(_ *world, _ *process, _ uint64, f *failure) { f.lose = true }},
		{"ENOBUFS before the acknowledgement", func(_ *world, _ *process, _ uint64, f *failure) { f.overflow = true }},
		{"ENOBUFS when sending a transaction", func(_ *world, _ *process, _ uint64, f *failure) { f.send = unix.ENOBUFS }},
		{"EBUSY", func(_ *world, _ *process, _ uint64, f *failure) { f.refuse = unix.EBUSY }},
		{"ENOMEM", func(_ *world, _ *process, _ uint64, f *failure) { f.refuse = unix.ENOMEM }},
		{"another program's transaction before one", func(w *world, _ *process, arg uint64, _ *failure) { w.foreign(0) }},
		{"another program's transaction after one", func(w *world, _ *process, arg uint64, f *failure) { f.after = func() { w.foreign(0) } }},
		{"damage before a transaction", func(w *world, _ *process, arg uint64, _ *failure) { w.foreign(arg) }},
		{"damage after a transaction", func(w *world, _ *process, arg uint64, f *failure) { f.after = func() { w.foreign(arg) } }},
		{"killed before a transaction", func(w *world, p *process, _ uint64, f *failure) { w.kill(p); f.send = unix.EPERM }},
		{"killed after a transaction", func(w *world, p *process, _ uint64, f *failure) { f.lose = true; f.after = func() { w.kill(p) } }},
	},
	gets: {
		{"ENOBUFS when sending a request", func(_ *world, _ *process, _ uint64, f *failure) { f.send = unix.ENOBUFS }},
		{"a lost answer", func(_ *world, _ *process, _ uint64, f *failure) { f.lose = true }},
		{"another program's transaction before a request", func(w *world, _ *process, _ uint64, _ *failure) { w.foreign(0) }},
		{"damage before a request", func(w *world, _ *process, arg uint64, _ *failure) { w.foreign(arg) }},
		{"damage after a request", func(w *world, _ *process, arg uint64, f *failure) { f.after = func() { w.foreign(arg) } }},
	},
	dumps: {
		{"an interrupted dump", func(_ *world, _ *process, _ uint64, f *failure) { f.interrupted = true }},
		{"a lost message of a dump", func(_ *world, _ *process, _ uint64, f *failure) { f.lose = true }},
		{"another program's transaction in a dump", func(w *world, _ *process, _ uint64, _ *failure) { w.foreign(0) }},
		{"damage in a dump", func(w *world, _ *process, arg uint64, _ *failure) { w.foreign(arg) }},
	},
}

func (w *world) kill(p *process) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.dead = true
}

// refuses tells whether the kernel refuses an element: those with the address of an endpoint.
func (w *world) refuses(key, value []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refused == 0 {
		return false
	}
	endpoint := []byte{10, 0, 0, w.refused}
	return len(value) == 8 && string(value[:4]) == string(endpoint)
}

// otherTable is the table of another program.
var otherTable = nfnl.Table{Family: nfnl.IPv4, Name: "other"}

var otherSet = &nfnl.Set{Name: "x", KeyType: nfnl.TypeMark, KeyLen: 4}

// foreign is a transaction of another program: with 0 in its own table, and else in Slipstream's.
func (w *world) foreign(arg uint64) {
	var b nfnl.Batch
	if arg == 0 {
		w.mu.Lock()
		w.others++
		n := w.others
		w.mu.Unlock()
		b.AddTable(otherTable, "")
		b.AddSet(otherTable, otherSet)
		b.AddElement(otherTable, otherSet, []byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, nil, "")
	} else {
		w.mu.Lock()
		w.tampered = true
		w.mu.Unlock()
		w.kernel.damage(&b, arg, w.verifies())
	}
	if err := w.other.Commit(0, &b); err != nil {
		panic(fmt.Sprintf("another program's transaction: %v", err))
	}
}

// step carries out one step of the plan, when everything that follows from earlier ones has happened.
func (w *world) step(s step) {
	c := desiredtest.NewChoices(desiredtest.RandomInput(s.Arg, 400))
	switch s.kind() {
	case changeObjects:
		for range 1 + c.Below(10) {
			w.objects.Step(c, w)
			synctest.Wait() // else it depends on the scheduler which changes are programmed together
		}
	case arm:
		a := armed{class: class(c.Below(int(classes))), after: []int{0, 1, c.Below(6), c.Below(200)}[c.Below(4)], times: 1 + c.Below(8)/5*3, how: c.Below(256), arg: s.Arg | 1}
		w.mu.Lock()
		w.armed = append(w.armed, a)
		w.mu.Unlock()
	case tamper:
		w.foreign(s.Arg | 1)
	case commitElsewhere:
		w.foreign(0)
	case disturbWatches:
		w.disturb(c)
	case restart:
		w.stop(c.Below(2) == 1)
		w.start()
	case refuse:
		w.mu.Lock()
		w.refused = byte(c.Below(8))
		w.mu.Unlock()
	case readers:
		w.mu.Lock()
		w.readers = nil
		for i := range c.Below(3) {
			w.readers = append(w.readers, nfnl.Reader{Socket: uint64(i), Dumping: c.Below(2) == 1})
		}
		w.mu.Unlock()
	case silence:
		w.settle(false)
		time.Sleep(learns)
		w.mu.Lock()
		w.silent = map[netip.Addr]bool{}
		few := []int{2, 3, 256}[c.Below(3)] // one in so many answers, or the others
		for i := range 256 {
			w.silent[netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})] = (i%few == 0) == (few < 256)
		}
		w.mu.Unlock()
		time.Sleep(finds)
		synctest.Wait()
		w.checkEjected()
		w.mu.Lock()
		w.silent = nil // the proxy asks an endpoint that is new and silent again only after minutes
		w.mu.Unlock()
	case wait:
		time.Sleep(time.Duration(1+c.Below(60)) * time.Second)
	case settle:
		w.settle(false)
	}
	time.Sleep([]time.Duration{0, 0, 3 * time.Millisecond, 300 * time.Millisecond, 1300 * time.Millisecond}[c.Below(5)])
	synctest.Wait()
	w.mu.Lock()
	dead := w.process.dead
	w.mu.Unlock()
	if dead {
		w.stop(true)
		w.start()
		synctest.Wait()
	}
}

// disturb does to watches what API servers and networks do.
func (w *world) disturb(c *desiredtest.Choices) {
	resource := []string{"", "services", "endpointslices", "nodes"}[c.Below(4)]
	switch c.Below(10) {
	case 0:
		w.server.pause(true)
	case 1:
		w.server.pause(false)
	case 2:
		w.server.cut(resource, false)
	case 3:
		w.server.cut(resource, true)
	case 4:
		w.server.compact()
		w.server.cut(resource, false)
	case 5:
		w.server.repeat(false)
	case 6:
		w.server.repeat(true)
	case 7:
		w.server.set(func() { w.server.down = true })
		w.server.cut(resource, false)
	case 8:
		w.server.set(func() { w.server.status = 500 })
		w.server.cut(resource, false)
	case 9:
		w.server.set(func() { w.server.down, w.server.status = false, 0 })
	}
}

// patience bounds how long after the last failure the kernel may lack something: a Service that the kernel has refused
// is left out for ten minutes, and a client of the API server waits for up to a minute and a half.
const patience = 20 * time.Minute

// settle ends all failures, and waits until the kernel has what it should, with or without a look at its rules.
func (w *world) settle(rules bool) {
	w.mu.Lock()
	w.armed, w.readers, w.refused, w.silent = nil, nil, 0, nil
	w.mu.Unlock()
	w.server.set(func() { w.server.down, w.server.status = false, 0 })
	w.server.pause(false)
	if w.process.dead {
		w.stop(true)
		w.start()
	}
	var full *desired.Change
	var want *dataplane.Content
	diff, pause := "", time.Second
	for waited := time.Duration(0); waited < patience; waited += pause {
		time.Sleep(pause)
		synctest.Wait()
		full = w.wanted()
		want = dataplane.ContentOf(full)
		if diff = dataplane.Difference(want, w.read()); diff == "" && rules {
			_, faults, err := w.auditor.Rules(context.Background(), full)
			if err != nil {
				faults = append(faults, err.Error())
			}
			diff = strings.Join(faults, "\n")
		}
		if diff == "" {
			break
		}
		pause = min(2*pause, time.Minute)
	}
	if diff != "" {
		w.violate("the kernel is not as desired %v after the last failure:\n%s", patience, diff)
		return
	}
	w.log("settled: %d frontends, %d pools", len(full.Frontends), len(full.Pools))
	for _, line := range want.Lines() {
		fmt.Fprintln(w.trace, line)
	}
	w.checkOther()
}

// wanted describes what the API server's objects ask for, as a new proxy would.
func (w *world) wanted() *desired.Change {
	c := &w.wantedState().Full().Change
	w.mu.Lock()
	defer w.mu.Unlock()
	c.Ranges = c.Ranges || w.ranged
	return c
}

func (w *world) wantedState() *desired.State {
	s := desired.New(w.config())
	s.SetNodeAddresses(w.addresses)
	for resource, q := range map[string]url.Values{
		"nodes": {"fieldSelector": {"metadata.name=" + desiredtest.ThisNode}}, "servicecidrs": nil,
		"services":       {"labelSelector": {"!service.kubernetes.io/service-proxy-name"}, "fieldSelector": {"spec.clusterIP!=None"}},
		"endpointslices": {"labelSelector": {"!" + corev1.IsHeadlessService}},
	} {
		for _, o := range w.server.kinds[resource].matching(q) {
			proxy.ApplyEvent(s, source.Event{Type: source.Set, Object: o})
		}
	}
	return s
}

// The proxy knows after learns which endpoints answer it, and has ejected those that fall silent after finds.
const learns, finds = 2 * time.Minute, 3 * time.Minute

// noLoads are those of connections that end at once.
type noLoads struct{}

func (noLoads) Of(desired.Protocol, desired.Backend) (none desired.Load) { return none }
func (noLoads) Changed() []desired.FrontendKey                           { return nil }

// clients are connections to all endpoints that the kernel sends any to, all the time. They are the proxy's
// [proxy.Loads], without loads.
type clients struct {
	w     *world
	state *desired.State
}

func (c *clients) Update(context.Context, bool, func(desired.FrontendKey, desired.Backend) string) error {
	return nil
}

func (c *clients) Stop() error { return nil }

func (c *clients) Handshakes() (all []desired.Handshake) {
	reported := c.state.Reported()
	for f, t := range dataplane.ContentOf(reported).Frontends {
		for _, b := range t.Backends {
			if detection, service := c.state.DetectionOf(f, b); detection != "" {
				all = append(all, desired.Handshake{Namespace: service.Namespace, Frontend: f, Backend: b, Failing: c.w.connect(b) != nil})
			}
		}
	}
	return all
}

func (w *world) connect(to desired.Backend) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.silent[to.Addr()] {
		return unix.EHOSTUNREACH
	}
	return nil
}

// checkEjected checks that the kernel lacks the endpoints that are silent and no others, but has half of each pool.
func (w *world) checkEjected() {
	s := w.wantedState()
	want, got := dataplane.ContentOf(&s.Full().Change), w.read()
	for f, t := range want.Frontends {
		silent := 0
		if t.Varies || t.Spread != "" {
			continue // some have no slot
		}
		for _, b := range t.Backends {
			ejectable := w.connect(b) != nil
			if detection, _ := s.DetectionOf(f, b); detection != desired.EjectOutliers {
				ejectable = false
			}
			if ejectable {
				silent++
			} else if !slices.Contains(got.Frontends[f].Backends, b) {
				w.violate("%s lacks %s, which is to serve: %v", f, b, got.Frontends[f].Backends)
			}
		}
		if n := len(t.Backends); len(got.Frontends[f].Backends) != n-min(silent, n/2) {
			w.violate("%s has %v of %v, of which %d are silent", f, got.Frontends[f].Backends, t.Backends, silent)
		}
	}
}

// checkOther checks that the other program's table is as it left it.
func (w *world) checkOther() {
	n := uint32(0)
	if err := w.other.Elements(otherTable, otherSet.Name, func(nfnl.Element) { n++ }); err != nil || n != w.others {
		w.violate("the other program's set has %d of %d elements: %v", n, w.others, err)
	}
	if w.kernel.trespass != "" {
		w.violate("Slipstream sent %s", w.kernel.trespass)
	}
}

// lasting writes the same content into a new kernel, and compares how many elements each set has: elements that lead
// nowhere have no meaning, but must not stay.
func (w *world) lasting() {
	u := newKernel(1).newUser("slipstream")
	defer u.leave()
	plane, err := nftables.New(dataplane.Config{NetNS: u.netns, MasqueradeBit: dataplane.DefaultMasqueradeBit})
	if err != nil {
		panic(err)
	}
	defer plane.Close()
	if _, err := plane.Reconcile(context.Background(), w.wanted()); err != nil {
		w.violate("writing everything: %v", err)
		return
	}
	want, got := u.kernel.sizes(), w.kernel.sizes()
	for set, n := range want {
		if got[set] != n && !strings.Contains(set, "picks") && !strings.HasSuffix(set, " remember") { // of chains that stay
			w.violate("set %s has %d elements instead of %d", set, got[set], n)
		}
	}
}

// These make world a desiredtest.State: objects go to the API server.

func (w *world) SetService(o *corev1.Service) {
	if o.Annotations["slipstream.io/slow-start"] == "1h" {
		o.Annotations["slipstream.io/slow-start"] = "40s" // so that it is over when the kernel is compared
	}
	w.server.put(o, false)
}

func (w *world) DeleteService(namespace, name string) {
	w.server.put(named(&corev1.Service{}, namespace, name), true)
}

func (w *world) SetEndpointSlice(o *discoveryv1.EndpointSlice) bool {
	w.server.put(o, false)
	return true
}

func (w *world) DeleteEndpointSlice(namespace, name string) bool {
	w.server.put(named(&discoveryv1.EndpointSlice{}, namespace, name), true)
	return true
}

func (w *world) SetNode(o *corev1.Node) bool {
	w.server.put(o, false)
	return true
}

// DeleteNode leaves the proxy's own Node, which the desired state keeps anyway.
func (w *world) DeleteNode(name string) {
	if name != desiredtest.ThisNode {
		w.server.put(named(&corev1.Node{}, "", name), true)
	}
}

func (w *world) SetServiceCIDR(o *networkingv1.ServiceCIDR) { w.server.put(o, false) }

func (w *world) DeleteServiceCIDR(name string) {
	w.server.put(named(&networkingv1.ServiceCIDR{}, "", name), true)
}

func (w *world) SetNodeAddresses(all []netip.Addr) {
	w.mu.Lock()
	w.addresses = all
	w.sources++
	w.mu.Unlock()
	w.process.addresses <- slices.Clone(all)
}

func (w *world) SetPod(*corev1.Pod)             {}
func (w *world) DeletePod(string, string)       {}
func (w *world) SetNamespace(*corev1.Namespace) {}
func (w *world) DeleteNamespace(string)         {}

func named[T source.Object](o T, namespace, name string) T {
	o.SetNamespace(namespace)
	o.SetName(name)
	return o
}

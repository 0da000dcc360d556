// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// dial opens a socket in a network namespace of its own.
func dial(t testing.TB) (*Conn, *lab.Namespace) {
	kerneltest.Require(t, kerneltest.IPVS)
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	c, err := Dial(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, ns
}

// execute carries out requests, none of which may fail.
func execute(t testing.TB, c *Conn, requests ...Request) {
	t.Helper()
	err := c.Execute(t.Context(), requests, func(i int, err error) { t.Errorf("request %d: %v", i, err) })
	if err != nil {
		t.Fatal(err)
	}
}

func key(addr string, protocol uint8) Key {
	a := netip.MustParseAddrPort(addr)
	return Key{Addr: a.Addr(), Port: a.Port(), Protocol: protocol}
}

func to(addr string, weight uint32) Destination {
	return Destination{AddrPort: netip.MustParseAddrPort(addr), Weight: weight, Masquerading: true}
}

func services(t *testing.T, c *Conn) []Service {
	t.Helper()
	all, err := c.Services(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b Service) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	return all
}

func destinations(t *testing.T, c *Conn, k Key) []Destination {
	t.Helper()
	all, err := c.Destinations(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(all, func(a, b Destination) int { return a.Compare(b.AddrPort) })
	return all
}

// TestServices reads back every kind of virtual server, as it was added and as it was changed.
func TestServices(t *testing.T) {
	c, ns := dial(t)
	all := []Service{
		{Key: key("10.96.0.1:443", unix.IPPROTO_TCP), Scheduler: "rr", MaskBits: 32},
		{Key: key("10.96.0.2:53", unix.IPPROTO_UDP), Scheduler: "sh", Flags: Scheduler1 | Scheduler2, MaskBits: 32},
		{Key: key("10.96.0.3:9", unix.IPPROTO_SCTP), Scheduler: "wlc", Flags: Persistent, Timeout: 600, MaskBits: 24},
		{Key: key("[fd00:96::1]:443", unix.IPPROTO_TCP), Scheduler: "mh", Flags: Persistent, Timeout: 10800, MaskBits: 64},
		{Key: Key{Mark: 7}, Scheduler: "lc", MaskBits: 32},
		{Key: Key{Mark: 7, Mark6: true}, Scheduler: "lc", MaskBits: 128},
	}
	var requests []Request
	for _, s := range all {
		requests = append(requests, AddService(s))
	}
	execute(t, c, requests...)
	if got := services(t, c); !slices.Equal(got, all) {
		t.Fatalf("%+v", got)
	}
	all[0].Scheduler, all[0].Flags, all[0].Timeout, all[0].MaskBits = "sed", Persistent, 30, 16
	all[2].Scheduler, all[2].Flags, all[2].Timeout, all[2].MaskBits = "rr", 0, 0, 32
	execute(t, c, SetService(all[0]), SetService(all[2]))
	if got := services(t, c); !slices.Equal(got, all) {
		t.Fatalf("after the change: %+v", got)
	}
	if seen := run(t, ns, "ipvsadm", "-Sn"); !strings.Contains(seen, "-A -t 10.96.0.1:443 -s sed -p 30 -M 255.255.0.0") {
		t.Errorf("ipvsadm shows\n%s", seen)
	}
	execute(t, c, DeleteService(all[0].Key), DeleteService(all[5].Key))
	if got := services(t, c); !slices.Equal(got, all[1:5]) {
		t.Fatalf("after the deletion: %+v", got)
	}
}

func TestDestinations(t *testing.T) {
	c, _ := dial(t)
	for _, example := range []struct {
		key     Key
		one, tw string
	}{
		{key("10.96.0.1:443", unix.IPPROTO_TCP), "10.244.0.1:8443", "10.244.0.2:8443"},
		{key("[fd00:96::1]:443", unix.IPPROTO_TCP), "[fd00:244::1]:8443", "[fd00:244::2]:8443"},
		{Key{Mark: 9, Mark6: true}, "[fd00:244::1]:1", "[fd00:244::1]:2"},
	} {
		t.Run(example.key.String(), func(t *testing.T) {
			bits := uint8(32)
			if example.key.IPv6() {
				bits = 128
			}
			want := []Destination{to(example.one, 1), to(example.tw, 100)}
			execute(t, c, AddService(Service{Key: example.key, Scheduler: "rr", MaskBits: bits}),
				AddDestination(example.key, want[0]), AddDestination(example.key, want[1]))
			if got := destinations(t, c, example.key); !slices.Equal(got, want) {
				t.Fatalf("%+v", got)
			}
			want[1].Weight = 0
			execute(t, c, SetDestination(example.key, want[1]), DeleteDestination(example.key, want[0].AddrPort))
			if got := destinations(t, c, example.key); !slices.Equal(got, want[1:]) {
				t.Fatalf("after the change: %+v", got)
			}
		})
	}
}

// TestListing: the list of everything has what each virtual server's list has.
func TestListing(t *testing.T) {
	c, ns := dial(t)
	all := map[Key][]Destination{}
	requests := []Request{AddService(Service{Key: Key{Mark: 7}, Scheduler: "rr", MaskBits: 32}), AddDestination(Key{Mark: 7}, to("10.244.0.9:0", 1))}
	for _, k := range []Key{
		key("10.96.0.1:80", unix.IPPROTO_TCP), key("10.96.0.1:53", unix.IPPROTO_UDP), key("10.96.0.1:9", unix.IPPROTO_SCTP),
		key("[fd00:96::1]:80", unix.IPPROTO_TCP), key("10.96.0.2:80", unix.IPPROTO_TCP),
	} {
		all[k] = nil
		requests = append(requests, AddService(Service{Key: k, Scheduler: "wrr", Flags: Persistent, Timeout: 300, MaskBits: uint8(k.Addr.BitLen())}))
		if k.Addr == netip.MustParseAddr("10.96.0.2") {
			continue // has none
		}
		for i := range 3 {
			d := to(fmt.Sprintf("10.244.1.%d:%d", 200+i, 8000+i), uint32(i))
			if k.IPv6() {
				d = to(fmt.Sprintf("[fd00:244::%d]:%d", 200+i, 8000+i), uint32(i))
			}
			all[k] = append(all[k], d)
			requests = append(requests, AddDestination(k, d))
		}
	}
	execute(t, c, requests...)
	var got map[Key][]Destination
	err := ns.Do(func() (err error) {
		got, err = Listing()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(all) {
		t.Errorf("%d virtual servers, want %d: %v", len(got), len(all), got)
	}
	for k := range all {
		want := destinations(t, c, k)
		slices.SortFunc(got[k], func(a, b Destination) int { return a.Compare(b.AddrPort) })
		if _, exists := got[k]; !exists || !slices.Equal(got[k], want) || len(want) != len(all[k]) {
			t.Errorf("%s: %+v, want %+v", k, got[k], want)
		}
	}
}

// TestRefused: requests that the kernel refuses are reported one by one, and those between
// them are carried out, over more requests than one system call sends.
func TestRefused(t *testing.T) {
	c, _ := dial(t)
	k, missing := key("10.96.0.1:443", unix.IPPROTO_TCP), key("10.96.0.9:443", unix.IPPROTO_TCP)
	requests := []Request{AddService(Service{Key: k, Scheduler: "rr", MaskBits: 32})}
	want := map[int]error{}
	for i := range 256 {
		requests = append(requests,
			AddDestination(missing, to("10.244.0.1:1", 1)),
			AddDestination(k, to(fmt.Sprintf("10.244.1.%d:80", i), 1)))
		want[1+2*i] = unix.ESRCH
	}
	for request, err := range map[*Request]error{
		{AddService(Service{Key: k, Scheduler: "rr", MaskBits: 32}).data}:            unix.EEXIST,
		{AddService(Service{Key: missing, Scheduler: "nothing", MaskBits: 32}).data}: unix.ENOENT,
		{DeleteDestination(k, netip.MustParseAddrPort("10.0.0.1:1")).data}:           unix.ENOENT,
		{SetDestination(k, to("10.0.0.1:1", 1)).data}:                                unix.ENOENT,
		{AddDestination(k, to("10.244.1.0:80", 1)).data}:                             unix.EEXIST,
		{DeleteService(missing).data}:                                                unix.ESRCH,
	} {
		want[len(requests)] = err
		requests = append(requests, *request)
	}
	got := map[int]error{}
	if err := c.Execute(t.Context(), requests, func(i int, err error) { got[i] = err }); err != nil {
		t.Fatal(err)
	}
	for i := range requests {
		if !errors.Is(got[i], want[i]) || (got[i] == nil) != (want[i] == nil) {
			t.Errorf("request %d: got %v, want %v", i, got[i], want[i])
		}
	}
	if n := len(destinations(t, c, k)); n != 256 {
		t.Errorf("%d destinations", n)
	}
	if all := destinations(t, c, missing); len(all) != 0 {
		t.Errorf("a virtual server that does not exist has %+v", all)
	}
}

func TestTimeouts(t *testing.T) {
	c, _ := dial(t)
	before, err := c.Timeouts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.SetTimeouts(t.Context(), Timeouts{TCP: 1234, UDP: 56}); err != nil {
		t.Fatal(err)
	}
	after, err := c.Timeouts(t.Context())
	if want := (Timeouts{1234, before.TCPFin, 56}); err != nil || after != want || before.TCPFin == 0 {
		t.Errorf("%+v, then %+v: %v", before, after, err)
	}
}

// TestSchedulers: the test kernels have all schedulers, and probing leaves nothing.
func TestSchedulers(t *testing.T) {
	c, _ := dial(t)
	all := schedulerNames
	defer func() { schedulerNames = all }()
	schedulerNames = append(slices.Clone(all), "nothing")
	names, err := c.Schedulers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range strings.Fields("rr wrr lc wlc lblc lblcr sh dh sed nq mh fo ovf") {
		if !slices.Contains(names, name) {
			t.Errorf("no scheduler %s among %s", name, names)
		}
	}
	if slices.Contains(names, "nothing") {
		t.Errorf("a scheduler that does not exist is among %s", names)
	}
	if left := services(t, c); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}

// TestTry: what the kernel refuses is found without a trace, beside another program's virtual server
// with the same mark.
func TestTry(t *testing.T) {
	c, _ := dial(t)
	other := Service{Key: Key{Mark: 0xfffffffe}, Scheduler: "rr", MaskBits: 32}
	execute(t, c, AddService(other))
	for _, try := range []struct {
		to   string
		want error
	}{{"10.244.1.1:80", nil}, {"255.255.255.255:80", unix.EINVAL}, {"[fd00::1]:80", nil}, {"[ff02::1]:80", unix.EINVAL}} {
		to := netip.MustParseAddrPort(try.to)
		if refused, err := c.Try(t.Context(), "rr", to.Addr().Is6(), to); err != nil || !errors.Is(refused, try.want) {
			t.Errorf("%s: refused %v, error %v; want %v", to, refused, err, try.want)
		}
	}
	if refused, err := c.Try(t.Context(), "nothing", false); err != nil || !errors.Is(refused, unix.ENOENT) {
		t.Errorf("refused %v, error %v", refused, err)
	}
	if _, err := c.Schedulers(t.Context()); err != nil {
		t.Error(err)
	}
	if left := services(t, c); len(left) != 1 || left[0].Key != other.Key {
		t.Errorf("left: %+v", left)
	}
}

// TestContext: when the context has ended, nothing is sent.
func TestContext(t *testing.T) {
	c, _ := dial(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := c.Execute(ctx, []Request{AddService(Service{Key: Key{Mark: 1}, Scheduler: "rr", MaskBits: 32})}, nil)
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if all := services(t, c); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// TestUnsupported: on a kernel without IPVS, Dial says so.
func TestUnsupported(t *testing.T) {
	c, err := Dial(0)
	if err == nil {
		c.Close()
		t.Skip("the kernel has IPVS")
	}
	if !feature.Lacks(err) {
		t.Error(err)
	}
}

func run(t *testing.T, ns *lab.Namespace, name string, args ...string) (out string) {
	t.Helper()
	err := ns.Do(func() error {
		b, err := exec.Command(name, args...).CombinedOutput()
		out = string(b)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
	return out
}

// BenchmarkExecute adds 1,000 virtual servers of 10 destinations, and beside that sends the same messages, made
// before, with nothing but system calls.
func BenchmarkExecute(b *testing.B) {
	var requests []Request
	for i := range 1000 {
		k := Key{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80, Protocol: unix.IPPROTO_TCP}
		requests = append(requests, AddService(Service{Key: k, Scheduler: "rr", MaskBits: 32}))
		for n := range 10 {
			to := netip.AddrFrom4([4]byte{10, 244, byte((10*i + n) >> 8), byte(10*i + n)})
			requests = append(requests, AddDestination(k, Destination{AddrPort: netip.AddrPortFrom(to, 80), Weight: 1}))
		}
	}
	var took, kernel time.Duration
	for b.Loop() {
		c, _ := dial(b)
		begin := time.Now()
		execute(b, c, requests...)
		took += time.Since(begin)
		c, ns := dial(b)
		var buffers [][]byte
		for chunk := range slices.Chunk(requests, 256) {
			var buffer []byte
			for i, r := range chunk {
				m := netlink.Message{Header: netlink.Header{Length: uint32(16 + len(r.data)), Type: c.family, Flags: netlink.Request, Sequence: uint32(i + 1)}, Data: r.data}
				raw, err := m.MarshalBinary()
				if err != nil {
					b.Fatal(err)
				}
				buffer = append(buffer, raw...)
			}
			buffers = append(buffers, buffer)
		}
		err := ns.Do(func() error {
			fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			begin := time.Now()
			for _, buffer := range buffers {
				if err := unix.Sendto(fd, buffer, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
					return err
				}
			}
			kernel += time.Since(begin)
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
		sent, err := c.Services(b.Context())
		if err != nil || len(sent) != 1000 {
			b.Fatalf("%d virtual servers: %v", len(sent), err)
		}
	}
	b.ReportMetric(float64(took.Microseconds())/float64(b.N)/1e3, "ms")
	b.ReportMetric(float64(kernel.Microseconds())/float64(b.N)/1e3, "kernel-ms")
	b.ReportMetric(float64(took)/float64(kernel), "ratio")
}

func TestParseScheduler(t *testing.T) {
	for text, want := range map[string]Scheduler{
		"rr": {"rr", 0}, "sh": {"sh", 0}, "sh,sh-fallback": {"sh", 0x8}, "sh,sh-fallback,sh-port": {"sh", 0x18},
		"mh,mh-fallback": {"mh", 0x8}, "mh,mh-port": {"mh", 0x10},
	} {
		if got, err := ParseScheduler(text); err != nil || got != want || got.String() != text {
			t.Errorf("%s: %+v, again %s, error %v", text, got, got, err)
		}
	}
	// As kube-proxy sets it.
	if s, err := ParseScheduler("mh"); err != nil || s != (Scheduler{"mh", 0x10}) {
		t.Errorf("mh: %+v, %v", s, err)
	}
	for _, bad := range []string{"", "x", "rr ", "rr,", "rr,sh-port", "sh,mh-port", "sh,sh-port,", "sh, sh-port"} {
		if s, err := ParseScheduler(bad); err == nil {
			t.Errorf("%q: %+v", bad, s)
		}
	}
}

// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Namespace is an unnamed network namespace. It lives as long as the file
// descriptor held here, the sockets made in it and the processes started in it.
type Namespace struct {
	label string // for errors: "pod web-1"
	nl    *netlink.Handle

	mu     sync.RWMutex
	file   *os.File // nil once closed
	closed bool
	open   map[io.Closer]bool // ends with the namespace; true: a client, which ends first
}

// NewNamespace makes a namespace outside any lab, with nothing in it but lo. The
// caller closes it.
func NewNamespace() (*Namespace, error) { return newNamespace("namespace", endProfile) }

// newNamespace makes a namespace with lo up and the sysctls of the profile.
func newNamespace(label string, p profile) (*Namespace, error) {
	n := &Namespace{label: label, open: map[io.Closer]bool{}}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make network namespace: %w", err)
		}
		var err error
		if n.file, err = openThreadNamespace(); err != nil {
			return err
		}
		if err := p.apply(); err != nil {
			return err
		}
		n.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		lo, err := n.nl.LinkByName("lo")
		if err == nil {
			err = n.nl.LinkSetUp(lo)
		}
		if err != nil {
			return fmt.Errorf("set lo up: %w", err)
		}
		return nil
	})
	if err != nil {
		n.Close()
		return nil, n.wrap(err)
	}
	return n, nil
}

// wrap says in which namespace the error happened.
func (n *Namespace) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("lab: %s: %w", n.label, err)
}

// Do runs fn on a thread that is in the namespace and returns fn's error. Goroutines that fn
// starts are not in the namespace, sockets that it opens are, even if another thread uses them. The
// error is ErrClosed after Close.
func (n *Namespace) Do(fn func() error) error {
	return onThread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return fn()
	})
}

// enter moves the calling thread into the namespace.
func (n *Namespace) enter() error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.file == nil {
		return fmt.Errorf("network namespace: %w", ErrClosed)
	}
	if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// FD returns a file descriptor of the namespace, for netlink libraries, which belongs to the
// namespace. It is -1 after Close.
func (n *Namespace) FD() int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.file == nil {
		return -1
	}
	return int(n.file.Fd())
}

// Netlink returns a rtnetlink handle of the namespace, which is closed with it.
func (n *Namespace) Netlink() *netlink.Handle { return n.nl }

// SetSysctl writes a value below /proc/sys/net of the namespace, with the key
// in slashes: "ipv4/ip_forward". Keys that the kernel shows only in the root
// namespace give fs.ErrNotExist.
func (n *Namespace) SetSysctl(key, value string) error {
	return n.Do(func() error { return writeSysctl(key, value) })
}

// In is Namespace.Do for a function with a result.
func In[T any](n *Namespace, fn func() (T, error)) (result T, err error) {
	err = n.Do(func() (err error) { result, err = fn(); return err })
	return result, err
}

// Sysctl reads a value below /proc/sys/net of the namespace.
func (n *Namespace) Sysctl(key string) (string, error) {
	b, err := In(n, func() ([]byte, error) { return os.ReadFile(sysctls + key) })
	if err != nil {
		return "", fmt.Errorf("sysctl net/%s: %w", key, err)
	}
	return strings.TrimSpace(string(b)), nil
}

// DialContext is net.Dialer.DialContext in the namespace, to an address given as numbers.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return In(n, func() (net.Conn, error) { return new(net.Dialer).DialContext(ctx, network, address) })
}

// Listen is net.Listen in the namespace.
func (n *Namespace) Listen(network, address string) (net.Listener, error) {
	return In(n, func() (net.Listener, error) { return net.Listen(network, address) })
}

// HTTPClient returns a client that makes a new connection from the namespace for each
// request.
func (n *Namespace) HTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.DialContext}}
}

// Get reads a URL from the namespace, whatever the response's status is.
func (n *Namespace) Get(ctx context.Context, url string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := n.HTTPClient().Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	return response.StatusCode, string(all), err
}

// AddLocalRange makes every address of a range the namespace's own, to serve on and to
// connect from, by a local route.
func (n *Namespace) AddLocalRange(p netip.Prefix) error {
	// Without this, IPv6 sockets bind to addresses of links only.
	if err := n.SetSysctl("ipv6/ip_nonlocal_bind", "1"); err != nil {
		return err
	}
	lo, err := n.nl.LinkByName("lo")
	if err != nil {
		return err
	}
	return n.wrap(n.addRoute(netlink.Route{
		LinkIndex: lo.Attrs().Index, Dst: ipNet(p.Masked()),
		Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
	}))
}

// track records a resource that ends with the namespace.
func (n *Namespace) track(c io.Closer, client bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return ErrClosed
	}
	n.open[c] = client
	return nil
}

func (n *Namespace) untrack(c io.Closer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.open, c)
}

// closeOpen ends clients (streams and loads), or servers and processes.
func (n *Namespace) closeOpen(clients bool) (err error) {
	var open []io.Closer
	n.mu.RLock()
	for c, client := range n.open {
		if client == clients {
			open = append(open, c)
		}
	}
	n.mu.RUnlock()
	for _, c := range open {
		err = errors.Join(err, c.Close())
	}
	return err
}

// Close ends all clients, servers and processes in the namespace, and releases it. Calls
// after the first do nothing.
func (n *Namespace) Close() error {
	n.mu.Lock()
	closed := n.closed
	n.closed = true
	n.mu.Unlock()
	if closed {
		return nil
	}
	err := errors.Join(n.closeOpen(true), n.closeOpen(false))
	n.mu.Lock()
	file := n.file
	n.file = nil
	n.mu.Unlock()
	if n.nl != nil {
		n.nl.Close()
	}
	if file != nil {
		err = errors.Join(err, closeNow(file))
	}
	return err
}

// onThread runs fn on an operating system thread of its own and puts that thread back into
// its previous network namespace. A thread that cannot be put back ends with its goroutine.
// A runtime.Goexit in fn (testing's FailNow, for instance) continues in the caller.
func onThread(fn func() error) error {
	var err error
	returned := false
	done := make(chan struct{})
	var body func()
	body = func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			// The main thread stands for the process in /proc/PID/ns and
			// /proc/self/net; while it is held here the work goes elsewhere.
			moved := make(chan struct{})
			go func() { defer close(moved); body() }()
			<-moved
			runtime.UnlockOSThread()
			return
		}
		defer close(done)
		origin, openErr := openThreadNamespace()
		if openErr != nil {
			err, returned = openErr, true
			return
		}
		defer func() {
			if unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET) == nil {
				runtime.UnlockOSThread()
			}
			origin.Close()
		}()
		err = fn()
		returned = true
	}
	go body()
	<-done
	if !returned {
		runtime.Goexit()
	}
	return err
}

// openThreadNamespace opens the network namespace of the calling thread; the
// caller has locked its goroutine to it.
func openThreadNamespace() (*os.File, error) {
	// thread-self, not self: self is the main thread.
	f, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("network namespace of this thread: %w", err)
	}
	return f, nil
}

// profile says how a namespace's network stack behaves.
type profile struct {
	forward bool // routes packets between links, as a node does

	// firstPort is the first local port that clients get. Nodes stay clear of the usual
	// node port range 30000-32767.
	firstPort uint16
}

var (
	routerProfile = profile{forward: true, firstPort: 32768}
	endProfile    = profile{firstPort: 16384}
)

// apply sets the sysctls in the calling thread's namespace, before any link is made, as links
// copy the "default" values. A new namespace takes its IPv4 values from the root namespace, so
// all are set.
func (p profile) apply() error {
	forward := map[bool]string{true: "1", false: "0"}[p.forward]
	required := [][2]string{
		{"ipv4/ip_forward", forward}, // resets other values, so it is the first
		{"ipv6/conf/all/forwarding", forward},
		{"ipv6/conf/default/forwarding", forward},
		{"ipv4/ip_local_port_range", fmt.Sprintf("%d 65535", p.firstPort)},
	}
	for _, scope := range []string{"all", "default"} {
		required = append(required, [][2]string{
			{"ipv4/conf/" + scope + "/rp_filter", "0"},
			{"ipv4/conf/" + scope + "/send_redirects", "0"},
			{"ipv4/conf/" + scope + "/accept_redirects", "0"},
			{"ipv6/conf/" + scope + "/disable_ipv6", "0"},
			{"ipv6/conf/" + scope + "/accept_redirects", "0"},
			{"ipv6/conf/" + scope + "/accept_ra", "0"},
			{"ipv6/conf/" + scope + "/accept_dad", "0"},
		}...)
	}
	for _, kv := range required {
		if err := writeSysctl(kv[0], kv[1]); err != nil {
			return err
		}
	}
	// By default the kernel sends one ICMP error a second to a peer; then a
	// series of refused datagrams would look like timeouts.
	for _, kv := range [][2]string{
		{"ipv4/icmp_ratelimit", "0"},
		{"ipv6/icmp/ratelimit", "0"},
		{"ipv4/icmp_msgs_per_sec", "1000000"}, // per namespace since 6.13
		{"ipv4/icmp_msgs_burst", "100000"},
		{"ipv4/tcp_tw_reuse", "1"},
	} {
		if err := writeSysctl(kv[0], kv[1]); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// sysctls shows those of the reading thread's namespace.
const sysctls = "/proc/sys/net/"

func writeSysctl(key, value string) error {
	if err := os.WriteFile(sysctls+key, []byte(value), 0); err != nil {
		return fmt.Errorf("sysctl net/%s: %w", key, err)
	}
	return nil
}

// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// mediaPrograms are those of Debian that speak protocols with ports of their own choice.
var mediaPrograms = kerneltest.Define("programs of FTP and SIP", func() error {
	for _, name := range []string{"vsftpd", "curl", "sipp", "conntrack", "ss"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("%w (see test/deps.sh)", err)
		}
	}
	return nil
}, kerneltest.NFTables)

// media is a node with a Service with a named port, ranges and session affinity, and its three pods.
type media struct {
	node     *lab.Node
	servers  []*lab.Pod
	clients  []*lab.Pod
	frontend []netip.Addr // of the Service
}

func newMedia(t *testing.T, ranges string, port corev1.ServicePort) *media {
	kerneltest.Require(t, mediaPrograms)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m := &media{frontend: []netip.Addr{netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")}}
	var err error
	m.node, err = kerneltest.NewLab(t).Node("n1", lab.NodeOptions{
		Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24"), netip.MustParsePrefix("fd00:100::11/64")},
		PodCIDRs:  []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:244:1::/64")},
	})
	must(err)
	s := desired.New(desired.Config{NodeName: "n1"})
	s.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "media", Annotations: map[string]string{desired.AnnotationPortRanges: ranges}},
		Spec: corev1.ServiceSpec{
			ClusterIPs: []string{"10.96.0.10", "fd00:96::10"}, SessionAffinity: corev1.ServiceAffinityClientIP, Ports: []corev1.ServicePort{port},
		},
	})
	for i := range 6 {
		v4, v6 := fmt.Sprint("10.244.1.", 11+i), fmt.Sprintf("fd00:244:1::%d", 11+i)
		pod, err := m.node.Pod(fmt.Sprint("pod-", i), netip.MustParseAddr(v4), netip.MustParseAddr(v6))
		must(err)
		if i >= 3 {
			m.clients = append(m.clients, pod)
			continue
		}
		m.servers = append(m.servers, pod)
		for kind, ip := range map[discoveryv1.AddressType]string{discoveryv1.AddressTypeIPv4: v4, discoveryv1.AddressTypeIPv6: v6} {
			s.SetEndpointSlice(&discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("media-", i, kind), Labels: map[string]string{discoveryv1.LabelServiceName: "media"}},
				AddressType: kind, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}}},
				Ports: []discoveryv1.EndpointPort{{Name: &port.Name, Port: ptr.To(port.TargetPort.IntVal), Protocol: &port.Protocol}},
			})
		}
	}
	d, err := New(dataplane.Config{NetNS: m.node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	must(err)
	t.Cleanup(func() { d.Close() })
	dataplanetest.Reconcile(t, d, s)
	return m
}

// start starts a program in a pod, and waits until it has a port of an address.
func (m *media) start(t *testing.T, pod *lab.Pod, addr netip.Addr, port uint16, name string, args ...string) {
	t.Helper()
	p, err := pod.StartProgram(t.TempDir(), name, name, args...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := p.Await(ctx, func(ctx context.Context) error {
		out, err := pod.Run(ctx, "ss", "-Hlntu", fmt.Sprint("src = ", netip.AddrPortFrom(addr, port)))
		if err == nil && len(out) == 0 {
			err = fmt.Errorf("nothing has port %d of %s", port, addr)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// TestRangeWithFTP fetches files by passive FTP, whose data has a connection of its own, to a port that the server chooses.
// Both connections reach one pod: the others do not listen on that port.
func TestRangeWithFTP(t *testing.T) {
	const from, to = 30000, 40000
	m := newMedia(t, fmt.Sprintf("tcp/%d-%d", from, to), corev1.ServicePort{Name: "ftp", Port: 2121, TargetPort: intstr.FromInt32(21), Protocol: corev1.ProtocolTCP})
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	// The server serves files as another user, who may not look into the directories of tests.
	public, err := os.MkdirTemp("", "slipstream-ftp-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(public) })
	for v, frontend := range m.frontend {
		t.Run(desired.Family(v).String(), func(t *testing.T) {
			listen, url := "listen=YES\nlisten_address=", "ftp://"+netip.AddrPortFrom(frontend, 2121).String()+"/file"
			passive := map[string][]string{"EPSV": {url}, "PASV": {"--disable-epsv", "--no-ftp-skip-pasv-ip", url}} // PASV: to the address that the server says
			if frontend.Is6() {
				listen = "listen=NO\nlisten_ipv6=YES\nlisten_address6="
				delete(passive, "PASV")
			}
			for i, pod := range m.servers {
				root, empty, config := filepath.Join(public, fmt.Sprint(v, i)), t.TempDir(), filepath.Join(t.TempDir(), "vsftpd.conf")
				text := fmt.Sprintf("%s%s\nbackground=NO\nanonymous_enable=YES\nno_anon_password=YES\nftp_username=daemon\nanon_root=%s\n"+
					"secure_chroot_dir=%s\npasv_min_port=%d\npasv_max_port=%d\npasv_address=%s\n", listen, pod.Addrs()[v], root, empty, from, to, m.frontend[0])
				for _, err := range []error{
					os.Chmod(public, 0o755), os.Mkdir(root, 0o755), os.WriteFile(config, []byte(text), 0o600), os.WriteFile(filepath.Join(root, "file"), content, 0o644),
				} {
					if err != nil {
						t.Fatal(err)
					}
				}
				m.start(t, pod, pod.Addrs()[v], 21, "vsftpd", config)
			}
			for i, client := range m.clients {
				for name, args := range passive {
					got, err := client.Run(t.Context(), "curl", append([]string{"--silent", "--show-error", "--noproxy", "*", "--globoff", "--max-time", "30"}, args...)...)
					if err != nil || !bytes.Equal(got, content) {
						t.Errorf("client %d, %s: %d bytes: %v", i, name, len(got), err)
					}
				}
			}
		})
	}
}

// TestRangeWithSIP calls by SIP. The answer names a port for audio, which differs by pod, and the pod sends the audio back.
func TestRangeWithSIP(t *testing.T) {
	const sip = 5060
	m := newMedia(t, "udp/10000-20000", corev1.ServicePort{Name: "sip", Port: sip, TargetPort: intstr.FromInt32(sip), Protocol: corev1.ProtocolUDP})
	if err := m.node.SetSysctl("netfilter/nf_conntrack_acct", "1"); err != nil {
		t.Fatal(err)
	}
	scenario := func(name string) string {
		path, err := filepath.Abs("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	const packets = 25 // half a second
	audio := filepath.Join(t.TempDir(), "audio")
	if err := os.WriteFile(audio, make([]byte, packets*160), 0o600); err != nil {
		t.Fatal(err)
	}
	call, err := os.ReadFile(scenario("sip-call.xml"))
	if err != nil {
		t.Fatal(err)
	}
	calls := filepath.Join(t.TempDir(), "call.xml")
	if err := os.WriteFile(calls, bytes.ReplaceAll(call, []byte(`"audio,`), []byte(`"`+audio+`,`)), 0o600); err != nil {
		t.Fatal(err)
	}
	for v, frontend := range m.frontend {
		t.Run(desired.Family(v).String(), func(t *testing.T) {
			for i, pod := range m.servers {
				addr := pod.Addrs()[v]
				m.start(t, pod, addr, sip, "sipp", "-nostdin", "-sf", scenario("sip-answer.xml"), "-i", addr.String(), "-mi", addr.String(),
					"-mp", fmt.Sprint(10000+1000*i), "-rtp_echo", "-key", "frontend", frontend.String())
			}
			for i, client := range m.clients {
				addr := client.Addrs()[v].String()
				cmd := exec.CommandContext(t.Context(), "sipp", "-nostdin", "-sf", calls, "-i", addr, "-mi", addr, "-m", "1",
					"-timeout", "20s", "-timeout_error", netip.AddrPortFrom(frontend, sip).String())
				cmd.Dir = t.TempDir()
				if out, err := client.Output(cmd); err != nil {
					t.Errorf("client %d: %v\n%s", i, err, out)
				}
				flows := dataplanetest.RunIn(t, m.node.Namespace, "", "conntrack", "-L", "-f", strings.ToLower(desired.Family(v).String()), "-p", "udp", "--orig-src", addr, "--orig-dst", frontend.String())
				var pods, ports []string
				for _, f := range regexp.MustCompile(`dport=(\d+) packets=(\d+) bytes=\d+ (?:\[UNREPLIED\] )?src=(\S+) dst=\S+ sport=\d+ dport=\d+ packets=(\d+) `).FindAllStringSubmatch(flows, -1) {
					ports, pods = append(ports, f[1]), append(pods, f[3])
					if f[1] != fmt.Sprint(sip) && (f[2] != fmt.Sprint(packets) || f[4] != f[2]) {
						t.Errorf("client %d: %s packets of audio there and %s back, want %d", i, f[2], f[4], packets)
					}
				}
				if len(pods) != 2 || pods[0] != pods[1] || ports[0] == ports[1] {
					t.Errorf("client %d: not one pod for call and audio:\n%s", i, flows)
				}
			}
		})
	}
}

// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	k8s "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
)

// Where etcd listens in the control plane's namespace.
const (
	etcdClients = "http://127.0.0.1:2379"
	etcdPeers   = "http://127.0.0.1:2380"
)

// startTimeout bounds how long a program may take to be of use. It is long: only a
// broken one gets there.
const startTimeout = 3 * time.Minute

// ControlPlaneOptions are how a control plane is set up.
type ControlPlaneOptions struct {
	Dir          string         // in which a folder for the programs' files is made
	ServiceCIDRs []netip.Prefix // of ClusterIPs: one, or one of each family
	Release      Release        // of kube-apiserver; Current if empty
	APIFlags     []string       // further flags of kube-apiserver; the last one of a name counts
	Log          Log            // called about what takes long, if not nil
	Controllers  bool           // kube-controller-manager makes ServiceAccounts, so each pod gets one

	// Namespace is where the programs run; if nil, in one of their own that has no
	// link but lo. It is closed with the control plane only in that case.
	Namespace *lab.Namespace
	// Address is where the API server listens, and what its certificate is for:
	// 127.0.0.1:6443 if it is not valid.
	Address netip.AddrPort
}

// ControlPlane is an etcd and a kube-apiserver with no controllers: Services, EndpointSlices
// and Nodes stay as they were written, validated and with defaults.
type ControlPlane struct {
	// Client writes and reads objects, without a limit on its rate, and may do all.
	Client k8s.Interface

	options ControlPlaneOptions
	ns      *lab.Namespace
	dir     string
	token   string
	etcd    *lab.Program
	api     *lab.Program
}

// StartControlPlane starts a control plane and returns when it serves. Its files are removed
// with it.
func StartControlPlane(ctx context.Context, o ControlPlaneOptions) (_ *ControlPlane, err error) {
	o.Release = cmp.Or(o.Release, Current)
	// Building the programs is not part of the start.
	if _, err := o.Release.Binary(ctx, "kube-apiserver", o.Log); err != nil {
		return nil, err
	}
	if _, err := Current.Binary(ctx, "etcd", o.Log); err != nil {
		return nil, err
	}
	if !o.Address.IsValid() {
		o.Address = netip.MustParseAddrPort("127.0.0.1:6443")
	}
	c := &ControlPlane{options: o, ns: o.Namespace, dir: filepath.Join(o.Dir, "control-plane"), token: rand.Text()}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		return nil, err
	}
	if c.ns == nil {
		if c.ns, err = lab.NewNamespace(); err != nil {
			return nil, err
		}
	}
	defer lab.OnError(&err, c.Close)
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.StartEtcd(ctx); err != nil {
		return nil, err
	}
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(
		os.WriteFile(c.ServiceAccountKey(), key, 0o600),
		os.WriteFile(c.tokens(), []byte(c.token+",oracle,1,system:masters\n"), 0o600),
	); err != nil {
		return nil, err
	}
	if c.Client, err = k8s.NewForConfig(c.RESTConfig()); err != nil {
		return nil, err
	}
	return c, c.StartAPI(ctx)
}

// StartEtcd starts etcd, again after it was stopped, and returns when it serves.
func (c *ControlPlane) StartEtcd(ctx context.Context) error {
	binary, err := Current.Binary(ctx, "etcd", c.options.Log)
	if err != nil {
		return err
	}
	if c.etcd, err = c.ns.StartProgram(c.dir, "etcd", binary,
		"--data-dir="+c.EtcdData(),
		"--listen-client-urls="+etcdClients, "--advertise-client-urls="+etcdClients,
		"--listen-peer-urls="+etcdPeers, "--initial-advertise-peer-urls="+etcdPeers,
		"--initial-cluster=default="+etcdPeers,
		"--unsafe-no-fsync", // what is written need not survive the machine
	); err != nil {
		return err
	}
	return c.etcd.Await(ctx, func(ctx context.Context) error {
		_, _, err := c.ns.Get(ctx, etcdClients+"/version")
		return err
	})
}

// StartAPI starts the API server, again after it was stopped, and returns when it serves.
func (c *ControlPlane) StartAPI(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	binary, err := c.options.Release.Binary(ctx, "kube-apiserver", c.options.Log)
	if err != nil {
		return err
	}
	address := c.options.Address
	advertise := address.Addr().String()
	if address.Addr().IsLoopback() {
		advertise = "192.0.2.1" // for documentation: loopback is refused, and nothing connects to it
	}
	flags := []string{
		"--etcd-servers=" + etcdClients,
		"--bind-address=" + address.Addr().String(), fmt.Sprintf("--secure-port=%d", address.Port()),
		"--cert-dir=" + filepath.Dir(c.CertificateAuthority()), // it makes one and signs it itself
		"--token-auth-file=" + c.tokens(), "--authorization-mode=RBAC",
		"--service-cluster-ip-range=" + plain.List(c.options.ServiceCIDRs, ","),
		// The Service "kubernetes" gets no endpoints.
		"--advertise-address=" + advertise, "--endpoint-reconciler-type=none",
		"--service-account-issuer=https://oracle.invalid",
		"--service-account-key-file=" + c.ServiceAccountKey(), "--service-account-signing-key-file=" + c.ServiceAccountKey(),
	}
	if !c.options.Controllers {
		flags = append(flags, "--disable-admission-plugins=ServiceAccount")
	}
	c.api, err = c.ns.StartProgram(c.dir, "kube-apiserver", binary, append(flags, c.options.APIFlags...)...)
	if err != nil {
		return err
	}
	return c.api.Await(ctx, c.apiReady)
}

// API is the API server's process, the last one that was started.
func (c *ControlPlane) API() *lab.Program { return c.api }

// Etcd is etcd's process, the last one that was started. Its data is in the folder EtcdData.
func (c *ControlPlane) Etcd() *lab.Program { return c.etcd }

// Address is where the API server listens.
func (c *ControlPlane) Address() string { return c.options.Address.String() }

// CertificateAuthority is the path of the certificates by which clients know the API
// server.
func (c *ControlPlane) CertificateAuthority() string {
	return filepath.Join(c.dir, "certificates", "apiserver.crt")
}

func (c *ControlPlane) EtcdData() string          { return filepath.Join(c.dir, "etcd") }
func (c *ControlPlane) tokens() string            { return filepath.Join(c.dir, "tokens.csv") }
func (c *ControlPlane) ServiceAccountKey() string { return filepath.Join(c.dir, "service-account.key") }

// RequestEtcd calls etcd's API in JSON, which has 64-bit numbers as strings, and returns the
// revision after it.
func (c *ControlPlane) RequestEtcd(ctx context.Context, path, body string) (revision int64, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, etcdClients+path, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	response, err := c.ns.HTTPClient().Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	var answer struct {
		Header struct {
			Revision int64 `json:",string"`
		}
	}
	if err == nil && response.StatusCode == http.StatusOK {
		err = json.Unmarshal(said, &answer)
	}
	if err != nil || response.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd: %s %s: %s: %s (%v)", path, body, response.Status, said, err)
	}
	return answer.Header.Revision, err
}

// RESTConfig returns the configuration of a client in this process, for a user with all rights.
func (c *ControlPlane) RESTConfig() *rest.Config {
	return &rest.Config{
		Host:            "https://" + c.options.Address.String(),
		BearerToken:     c.token,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, // no other machine can be at the other end
		QPS:             -1,
		WarningHandler:  rest.NoWarnings{}, // deprecated fields are tested on purpose
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.ns.DialContext(ctx, "tcp", c.Address())
		},
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"},
	}
}

func (c *ControlPlane) apiReady(ctx context.Context) error {
	var code int
	c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code)
	if code != http.StatusOK {
		return fmt.Errorf("/readyz says %d", code)
	}
	return nil
}

// Close ends both programs and removes their files.
func (c *ControlPlane) Close() error {
	var errs []error
	for _, p := range []*lab.Program{c.api, c.etcd} {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	if c.options.Namespace == nil {
		errs = append(errs, c.ns.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

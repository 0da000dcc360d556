// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/flowcontrol"
	componentbase "k8s.io/component-base/config/v1alpha1"
)

// Client talks to one API server. Its REST clients share connections and the limit
// on the rate of requests.
type Client struct {
	config rest.Config
	http   *http.Client
}

// NewClient returns a client. It sends nothing. It returns an error if the configuration
// is not valid, e.g. if a certificate cannot be read.
func NewClient(config *rest.Config) (*Client, error) {
	c := &Client{config: *config}
	if c.config.RateLimiter == nil && c.config.QPS >= 0 {
		c.config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(
			cmp.Or(c.config.QPS, rest.DefaultQPS), cmp.Or(c.config.Burst, rest.DefaultBurst))
	}
	uncompressed(&c.config)
	var err error
	if c.http, err = rest.HTTPClientFor(&c.config); err != nil {
		return nil, fmt.Errorf("client for the API server %s: %w", c.config.Host, err)
	}
	return c, nil
}

// near is the round trip to an API server below which its answers are not compressed. Links that are as short carry
// 1 Gbit/s or more, at which gzip takes longer than it saves.
var near = time.Millisecond

// uncompressed makes clients ask API servers that are near for answers without compression. The round trip to a
// proxy says nothing about the server behind it.
func uncompressed(c *rest.Config) {
	host, port := location(c)
	dial, isNear := c.Dial, new(atomic.Bool)
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext // client-go's
	}
	c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		s, is := conn.(syscall.Conn)
		isNear.Store(is && address == net.JoinHostPort(host, port) && roundTrip(s) < near)
		return conn, err
	}
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return plain{next, isNear} })
}

// plain asks for answers without compression if the server is near.
type plain struct {
	next http.RoundTripper
	near *atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (p plain) RoundTrip(r *http.Request) (*http.Response, error) {
	var clone *http.Request
	dialed := func(httptrace.GotConnInfo) { // net/http reads the header afterwards
		if p.near.Load() && clone.Header.Get("Accept-Encoding") == "" {
			clone.Header.Set("Accept-Encoding", "identity")
		}
	}
	clone = r.Clone(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotConn: dialed}))
	return p.next.RoundTrip(clone)
}

// roundTrip returns the shortest round trip of a TCP connection so far (Linux 4.9); an hour if it is not known.
func roundTrip(c syscall.Conn) time.Duration {
	least := time.Hour
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				least = time.Duration(info.Min_rtt) * time.Microsecond
			}
		})
	}
	return least
}

// Apart returns a client with a limit on the rate of requests of its own, for requests that others
// cause.
func (c *Client) Apart() *Client {
	of := *c
	of.config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(rest.DefaultQPS, rest.DefaultBurst)
	return &of
}

// Server returns the address of the API server, if the configuration has it as an IP address.
func (c *Client) Server() (all []netip.AddrPort) {
	host, port := location(&c.config)
	if ip, err := netip.ParseAddr(host); err == nil {
		number, _ := strconv.ParseUint(port, 10, 16)
		all = append(all, netip.AddrPortFrom(ip.Unmap(), uint16(number)))
	}
	return all
}

// location returns where the API server is; "" if the configuration is not valid.
func location(c *rest.Config) (host, port string) {
	if u, _, err := rest.DefaultServerUrlFor(c); err == nil {
		host, port = u.Hostname(), cmp.Or(u.Port(), map[string]string{"http": "80", "https": "443"}[u.Scheme])
	}
	return host, port
}

// metadata returns a client for the metadata of objects.
func (c *Client) metadata() *Client {
	const metadataOf = ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	of := *c
	of.config.AcceptContentTypes = runtime.ContentTypeJSON + metadataOf
	if strings.Contains(cmp.Or(c.config.AcceptContentTypes, c.config.ContentType), runtime.ContentTypeProtobuf) {
		of.config.AcceptContentTypes = runtime.ContentTypeProtobuf + metadataOf + "," + of.config.AcceptContentTypes
	}
	return &of
}

// For returns a REST client for a few types of one version of one group of the API,
// e.g. corev1.SchemeGroupVersion with &corev1.Service{} and &corev1.ServiceList{}.
func (c *Client) For(gv schema.GroupVersion, types ...runtime.Object) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(gv, types...)
	metav1.AddToGroupVersion(scheme, gv)
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // for Status, the type of errors

	config := c.config
	config.GroupVersion = &gv
	config.APIPath = "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientForConfigAndClient(&config, c.http)
	if err != nil {
		return nil, fmt.Errorf("client for %s of the API server %s: %w", gv, c.config.Host, err)
	}
	return client, nil
}

// ClientConfig returns the configuration of a client, as in kube-proxy: from connection's
// kubeconfig file and master, the URL of a server, which overrides the file's. If neither
// is given, it returns the configuration of a pod in the cluster. Tokens and certificates
// in files are read again when they change.
//
// Empty fields of connection have kube-proxy's defaults: contentType
// application/vnd.kubernetes.protobuf, qps 5 (negative for no limit), burst 10.
// version is part of the user agent.
//
// Errors name the flag and the field of the configuration file.
func ClientConfig(connection componentbase.ClientConnectionConfiguration, master, version string) (*rest.Config, error) {
	if err := checkContentType(connection.ContentType); err != nil {
		return nil, err
	}
	config, err := locate(connection.Kubeconfig, master)
	if err != nil {
		return nil, err
	}
	config.ContentType = cmp.Or(connection.ContentType, runtime.ContentTypeProtobuf)
	config.AcceptContentTypes = connection.AcceptContentTypes
	config.QPS = cmp.Or(connection.QPS, rest.DefaultQPS)
	config.Burst = int(cmp.Or(connection.Burst, int32(rest.DefaultBurst)))
	config.UserAgent = fmt.Sprintf("slipstream/%s (%s/%s)", cmp.Or(version, "unknown"), goruntime.GOOS, goruntime.GOARCH)
	return config, nil
}

func checkContentType(contentType string) error {
	if contentType == "" {
		return nil
	}
	const field = "--kube-api-content-type (clientConnection.contentType)"
	switch media, _, err := mime.ParseMediaType(contentType); {
	case err != nil:
		return fmt.Errorf("%s: %q: %w", field, contentType, err)
	case media != runtime.ContentTypeProtobuf && media != runtime.ContentTypeJSON:
		return fmt.Errorf("%s: %q must be %s or %s", field, contentType, runtime.ContentTypeProtobuf, runtime.ContentTypeJSON)
	}
	return nil
}

// locate finds the server and the credentials for it.
func locate(kubeconfig, master string) (*rest.Config, error) {
	if kubeconfig == "" && master == "" {
		config, err := rest.InClusterConfig()
		switch {
		case errors.Is(err, rest.ErrNotInCluster):
			return nil, errors.New("where is the API server? Give --kubeconfig (clientConnection.kubeconfig) or --master; " +
				"without both, this has to be a pod of the cluster, in which KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are set")
		case err != nil:
			return nil, fmt.Errorf("neither --kubeconfig (clientConnection.kubeconfig) nor --master is given, and as a pod of the cluster: %w", err)
		}
		return config, nil
	}
	if master != "" {
		if _, _, err := rest.DefaultServerUrlFor(&rest.Config{Host: master}); err != nil {
			return nil, fmt.Errorf("--master: %w", err)
		}
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: master}},
	).ClientConfig()
	if err != nil {
		if kubeconfig == "" {
			return nil, fmt.Errorf("--master: %w", err)
		}
		return nil, fmt.Errorf("--kubeconfig (clientConnection.kubeconfig): %s: %w", kubeconfig, err)
	}
	return config, nil
}

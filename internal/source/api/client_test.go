// SPDX-License-Identifier: Apache-2.0

package api

import (
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// TestNear asks servers that are near for no compression: with HTTP/1.1 and HTTP/2, from the first request on, with a
// certificate from files, whose connections client-go wraps. Others, and those behind a proxy, are asked for gzip,
// unless the configuration has disable-compression.
func TestNear(t *testing.T) {
	defer func(usual time.Duration) { near = usual }(near)
	for _, http2 := range []bool{false, true} {
		for name, c := range map[string]struct {
			near     time.Duration
			disabled bool
			proxied  bool
			want     string
		}{
			"near": {near: time.Minute, want: "identity"}, "far": {near: 0, want: "gzip"}, "disabled": {near: 0, disabled: true, want: ""},
			"proxied": {near: time.Minute, proxied: true, want: "gzip"},
		} {
			if c.proxied && http2 {
				continue // the server is the proxy too, for http://
			}
			near = c.near
			var asked []string
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				asked = append(asked, r.Header.Get("Accept-Encoding"))
				if (r.ProtoMajor == 2) != http2 {
					t.Errorf("%s: %s", name, r.Proto)
				}
			}))
			s.EnableHTTP2 = http2
			config := rest.Config{DisableCompression: c.disabled}
			if c.proxied {
				s.Start()
				proxy, err := url.Parse(s.URL)
				check(t, err)
				config.Host, config.Proxy = "http://192.0.2.1", http.ProxyURL(proxy)
			} else {
				s.StartTLS()
				config.Host = s.URL
				config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
				if !http2 {
					config.NextProtos = []string{"http/1.1"}
				}
				key, err := x509.MarshalPKCS8PrivateKey(s.TLS.Certificates[0].PrivateKey)
				check(t, err)
				config.CertFile, config.KeyFile = filepath.Join(t.TempDir(), "cert"), filepath.Join(t.TempDir(), "key")
				check(t, os.WriteFile(config.CertFile, config.CAData, 0o600))
				check(t, os.WriteFile(config.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
			}
			client, err := NewClient(&config)
			check(t, err)
			api, err := client.For(corev1.SchemeGroupVersion, &corev1.Service{}, &corev1.ServiceList{})
			check(t, err)
			for range 2 {
				check(t, api.Get().Resource("services").Do(t.Context()).Error())
			}
			s.Close()
			if len(asked) != 2 || asked[0] != c.want || asked[1] != c.want {
				t.Errorf("HTTP/2 %t, %s: asked for %q, want %q", http2, name, asked, c.want)
			}
		}
	}
}

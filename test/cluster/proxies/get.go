// SPDX-License-Identifier: Apache-2.0

package proxies

import (
	"context"
	"io"
	"net/http"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// Get reads a URL of the node's, such as http://127.0.0.1:10249/metrics, whatever its
// status is.
func (p *Proxy) Get(ctx context.Context, url string) (status int, body string, err error) {
	return Get(ctx, &p.node.Machine, url)
}

// Get reads a URL from a machine.
func Get(ctx context.Context, m *lab.Machine, url string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := m.Namespace().HTTPClient().Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	return response.StatusCode, string(all), err
}

// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// health asks a health check node port, from outside.
func (l *look) health(p Probe) Outcome {
	l.slots <- struct{}{}
	defer func() { <-l.slots }()
	// There are few of these, and the proxy itself answers them, which takes longer.
	ctx, cancel := context.WithTimeout(l.ctx, max(l.pace.Timeout, Careful.Timeout))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.To.String()+"/", nil)
	if err != nil {
		return Outcome{Failures: []string{err.Error()}}
	}
	response, err := l.stage.Vantages[p.From].Machine.HTTPClient().Do(request)
	switch {
	case ctx.Err() != nil:
		return Outcome{Failures: []string{Timeout}}
	case err != nil:
		return Outcome{Failures: []string{lab.Outcome(err)}}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return Outcome{Failures: []string{lab.Outcome(err)}}
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, body); err != nil {
		compact = *bytes.NewBuffer(body)
	}
	h := response.Header
	return Outcome{Note: fmt.Sprintf("%d, %s, weight %q, %s", response.StatusCode, h.Get("Content-Type"), h.Get("X-Load-Balancing-Endpoint-Weight"), compact.String())}
}

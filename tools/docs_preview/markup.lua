-- The part of Quarto's markup that nbdev notebooks use, on plain pandoc: callouts, tabs, floats with
-- numbers, references to them, folded code, and links between notebooks.
local str = pandoc.utils.stringify
local names = {note='Note', warning='Warning', tip='Tip', important='Important', caution='Caution'}
local kinds = {fig='Figure', tbl='Table', eq='Equation', sec='Section', lst='Listing'}
local labels, counts, links, pagedir, siteurl, byurl = {}, {fig=0,tbl=0,eq=0,sec=0,lst=0}, {}, '.', '', {}

local function html(s) return pandoc.RawBlock('html', s) end
local function esc(s) return (s:gsub('&','&amp;'):gsub('<','&lt;'):gsub('>','&gt;'):gsub('"','&quot;')) end
local function number(id)
  local k = id:match('^(%a+)%-')
  if k and counts[k] and not labels[id] then counts[k] = counts[k]+1; labels[id] = counts[k] end
  return labels[id]
end

local function callout(d, kind)
  local title = d.attributes.title and pandoc.Inlines(d.attributes.title) or nil
  local c = d.content
  if not title and c[1] and c[1].t == 'Header' then title = c[1].content; c:remove(1) end
  title = title or pandoc.Inlines(names[kind])
  local coll = d.attributes.collapse
  local b = pandoc.Blocks{}
  local cls = 'callout callout-'..kind
  if coll then b:insert(html('<details class="'..cls..'"'..(coll=='false' and ' open' or '')..'><summary class="callout-title">'))
  else b:insert(html('<div class="'..cls..'" role="note"><div class="callout-title">')) end
  b:insert(pandoc.Plain(title))
  b:insert(html(coll and '</summary><div class="callout-body">' or '</div><div class="callout-body">'))
  b:extend(c)
  b:insert(html(coll and '</div></details>' or '</div></div>'))
  return b
end

local tabn = 0
local function tabset(d)
  tabn = tabn+1
  local heads, panes = {}, {}
  for _, x in ipairs(d.content) do
    if x.t == 'Header' then table.insert(heads, x.content); table.insert(panes, pandoc.Blocks{})
    elseif #panes > 0 then panes[#panes]:insert(x) end
  end
  local b = pandoc.Blocks{html('<div class="tabset"><div role="tablist">')}
  for i, h in ipairs(heads) do
    b:insert(html(string.format('<button role="tab" id="tab-%d-%d" aria-controls="pane-%d-%d" aria-selected="%s">', tabn, i, tabn, i, i==1 and 'true' or 'false')))
    b:insert(pandoc.Plain(h)); b:insert(html('</button>'))
  end
  b:insert(html('</div>'))
  for i, p in ipairs(panes) do
    b:insert(html(string.format('<div role="tabpanel" id="pane-%d-%d" aria-labelledby="tab-%d-%d"%s>', tabn, i, tabn, i, i>1 and ' hidden' or '')))
    b:extend(p); b:insert(html('</div>'))
  end
  b:insert(html('</div>'))
  return b
end

local function float(d)
  local id, cap, rest = d.identifier, nil, pandoc.Blocks{}
  for _, x in ipairs(d.content) do
    if x.t == 'Div' and x.classes:includes('caption') then cap = x else rest:insert(x) end
  end
  local k, n = id:match('^(%a+)%-'), number(id)
  local b = pandoc.Blocks{html('<figure'..(id ~= '' and ' id="'..esc(id)..'"' or '')..'>')}
  local capb = pandoc.Blocks{html('<figcaption>')}
  local inl = pandoc.Inlines{}
  if n then inl:extend(pandoc.Inlines(kinds[k]..' '..n)); if cap and str(cap) ~= '' then inl:insert(pandoc.Str(': ')) end end
  if cap then inl:extend(pandoc.utils.blocks_to_inlines(cap.content)) end
  capb:insert(pandoc.Plain(inl)); capb:insert(html('</figcaption>'))
  if k == 'tbl' then b:extend(capb); b:extend(rest) else b:extend(rest); b:extend(capb) end
  b:insert(html('</figure>'))
  return b
end

local function fix(url)
  local path, frag = url:match('^([^#]*)(#?.*)$')
  if siteurl ~= '' and path:sub(1, #siteurl) == siteurl then
    local p = path:sub(#siteurl+1):gsub('^/', '')
    if byurl[p] then return byurl[p]..frag end
  end
  if path:match('^%a+:') then return url end
  local key, before = pandoc.path.normalize(pandoc.path.join{pagedir, path}), nil
  repeat  -- normalize keeps `folder/..`
    before, key = key, key:gsub('[^/]+/%.%./', '', 1)
  until key == before
  return (links[key] or links[path] or path)..frag
end

local collect = { -- pass 1: numbers, in document order
  traverse = 'topdown',
  Div = function(d) if d.identifier ~= '' then number(d.identifier) end end,
  Header = function(h) if h.identifier:match('^sec%-') then labels[h.identifier] = str(h.content) end end,
  Inlines = function(xs)
    for i = 1, #xs do local m = xs[i]
      if m.t == 'Math' and m.mathtype == 'DisplayMath' then
        for j = i+1, math.min(i+2, #xs) do
          local id = xs[j].t == 'Str' and xs[j].text:match('^{#(eq%-[%w%-_]+)}$')
          if id then local n = number(id)
            m.text = m.text..' \\qquad('..n..')'
            local s = pandoc.Span({m}, pandoc.Attr(id)); local out = pandoc.Inlines{}
            for q = 1, i-1 do out:insert(xs[q]) end
            out:insert(s); for q = j+1, #xs do out:insert(xs[q]) end
            return out
          end end end end
  end,
}
local render = {
  Div = function(d)
    for _, c in ipairs(d.classes) do
      local k = c:match('^callout%-(%a+)$')
      if k and names[k] then return callout(d, k) end
      if c == 'panel-tabset' then return tabset(d) end
      if c == 'float' then return float(d) end
      if c == 'code-fold' then
        local b = pandoc.Blocks{html('<details class="code-fold"'..(d.attributes.open and ' open' or '')..'><summary>'..esc(d.attributes.summary)..'</summary>')}
        b:extend(d.content); b:insert(html('</details>')); return b
      end
    end
  end,
  CodeBlock = function(c)
    for _, k in ipairs(c.classes) do if k == 'mermaid' then return html('<pre class="mermaid">'..esc(c.text)..'</pre>') end end
  end,
  Cite = function(c)
    local out = pandoc.Inlines{}
    for _, x in ipairs(c.citations) do
      local k, n = x.id:match('^(%a+)%-'), labels[x.id]
      if not (k and kinds[k]) then return nil end
      if not n then io.stderr:write('WARNING unresolved reference @'..x.id..'\n'); return pandoc.Strong{pandoc.Str('?@'..x.id)} end
      out:insert(pandoc.Link(k == 'sec' and n or kinds[k]..'\u{a0}'..n, '#'..x.id, '', pandoc.Attr('', {'xref'})))
    end
    return out
  end,
  Link = function(l) l.target = fix(l.target); return l end,
}
function Pandoc(doc)
  -- read here and not by pandoc, which would parse each of the many addresses as Markdown
  local file = io.open(str(doc.meta.links), 'r')
  local m = pandoc.json.decode(file:read('a'), false)
  file:close()
  links, byurl, pagedir, siteurl = m.links, m.byurl, m.pagedir, m.siteurl
  doc = doc:walk(collect)
  return doc:walk(render)
end
